#!/bin/bash
# As much of the official image's contract as compose.yaml uses: POSTGRES_USER, POSTGRES_DB, POSTGRES_PASSWORD_FILE,
# POSTGRES_INITDB_ARGS; starts as root and gives it up.
set -euo pipefail
if [ "$(id -u)" = 0 ]; then
    mkdir -p "$PGDATA" /run/postgresql
    find "$PGDATA" /run/postgresql ! -user postgres -exec chown postgres {} +
    chmod 0700 "$PGDATA"
    exec gosu postgres "$0" "$@"
fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    read -ra options <<<"${POSTGRES_INITDB_ARGS:-}"
    initdb --pgdata="$PGDATA" --username="$POSTGRES_USER" --pwfile="$POSTGRES_PASSWORD_FILE" --encoding=UTF8 "${options[@]}"
    echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
    pg_ctl --pgdata="$PGDATA" --options="-c listen_addresses=''" --wait start
    createdb --host=/run/postgresql --username="$POSTGRES_USER" "$POSTGRES_DB"
    pg_ctl --pgdata="$PGDATA" --mode=fast --wait stop
fi
exec "$@" -c listen_addresses='*'

#!/bin/sh
# As the official image: root takes the data for valkey and gives itself up.
set -eu
if [ "$1" = valkey-server ] && [ "$(id -u)" = 0 ]; then
    find . ! -user valkey -exec chown valkey {} +
    exec setpriv --reuid=valkey --regid=valkey --clear-groups -- "$0" "$@"
fi
if [ "$1" = valkey-server ]; then
    shift
    set -- valkey-server --protected-mode no --bind '*' "$@"
fi
exec "$@"

#!/bin/sh
# secrets.sh [FOLDER]: creates the secrets that compose.yaml mounts, if they are missing; never changes an existing one.
#
# Only you can enter the folder. The files are readable by all, because each is mounted for a container's own user.
set -eu
folder=${1:-secrets}
mkdir -p "$folder"
chmod 0700 "$folder"
cd "$folder"

random() { od -An -N32 -tx1 /dev/urandom | tr -d ' \n'; }
keep() { # NAME VALUE
    [ -e "$1" ] && return 0
    (umask 022 && printf '%s\n' "$2" >".$1" && mv ".$1" "$1")
    echo "made $folder/$1"
}

keep postgres_password "$(random)"
keep valkey_password "$(random)"
keep cwm_secret "$(random)"
keep grafana_password "$(random)"
# Seals the KV that engines store; without it the stored KV is lost. The first key seals, all keys open.
keep kv_keys "$(random)"
# Derived from the secrets above: to change a password, also remove the files that contain it.
keep database_url "postgresql://cwm:$(cat postgres_password)@postgres:5432/cwm"
keep shared_store_url "redis://:$(cat valkey_password)@valkey:6379/0"
keep kv_valkey_url "redis://:$(cat valkey_password)@valkey-kv:6379/0"
keep valkey_acl "user default on #$(printf %s "$(cat valkey_password)" | sha256sum | cut -d' ' -f1) ~* &* +@all"

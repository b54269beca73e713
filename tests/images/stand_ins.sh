#!/bin/sh
# stand_ins.sh: images of Debian's packages that answer to the same names, variables and users as the ones that
# compose.yaml asks for, for machines that reach no registry: cwm-stand-in/{python,postgres,valkey,haproxy}.
set -eu
here=$(cd "$(dirname "$0")" && pwd)

have() { docker image inspect "$1" >/dev/null 2>&1; }

# base SUITE: cwm-stand-in/debian:SUITE, which trusts whom this machine trusts.
base() {
    have "cwm-stand-in/debian:$1" && return 0
    aside=$(mktemp -d)
    mirror=$(apt-get indextargets --format '$(REPO_URI)' | grep -m1 -E '/debian/?$')
    debootstrap --variant=minbase --include=ca-certificates "$1" "$aside/root" "$mirror" >"$aside/log" || {
        tail "$aside/log" "$aside/root/debootstrap/debootstrap.log" >&2
        exit 1
    }
    root=$aside/root
    for certificate in /usr/local/share/ca-certificates/*.crt; do
        [ -e "$certificate" ] && cp "$certificate" "$root/usr/local/share/ca-certificates/"
    done
    chroot "$root" update-ca-certificates >/dev/null 2>&1
    rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/usr/share/doc/* \
        "$root"/usr/share/man/* "$root"/usr/share/locale/*
    tar -C "$root" --numeric-owner --one-file-system -c . | docker import \
        --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8' \
        --change 'ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt PIP_CERT=/etc/ssl/certs/ca-certificates.crt' \
        --change 'CMD ["bash"]' - "cwm-stand-in/debian:$1" >/dev/null
    rm -rf "$aside"
}

# stand_in SUITE NAME
stand_in() {
    have "cwm-stand-in/$2" && return 0
    base "$1"
    docker buildx build --quiet --load --tag "cwm-stand-in/$2" "$here/stand-ins/$2" >/dev/null
    echo "made cwm-stand-in/$2"
}

stand_in bookworm python
stand_in trixie postgres
stand_in trixie valkey
stand_in trixie haproxy

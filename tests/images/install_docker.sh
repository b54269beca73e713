#!/bin/sh
# Puts Docker, Compose and buildx on a Debian machine that lacks them. Does nothing where they are there.
set -eu

debian() { apt-get indextargets --format '$(REPO_URI)' | grep -m1 -E '/debian/?$'; }

# unpacked SUITE FOLDER PACKAGE...: programs of a newer suite, without telling apt or dpkg of it.
unpacked() {
    suite=$1 into=$2
    shift 2
    aside=$(mktemp -d)
    mkdir -p "$aside/lists/partial" "$aside/cache/archives/partial"
    : >"$aside/status"
    keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    echo "deb [signed-by=$keyring] $(debian) $suite main" >"$aside/sources.list"
    cat >"$aside/apt.conf" <<EOF
APT::Sandbox::User "root";
Dir::Etc::SourceList "$aside/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::State::Lists "$aside/lists";
Dir::State::Status "$aside/status";
Dir::Cache "$aside/cache";
EOF
    export APT_CONFIG="$aside/apt.conf"
    apt-get -qq update
    (cd "$aside" && apt-get -qq download "$@")
    unset APT_CONFIG
    for package in "$aside"/*.deb; do dpkg-deb -x "$package" "$into"; done
    rm -rf "$aside"
}

if ! command -v dockerd >/dev/null && ! docker info >/dev/null 2>&1; then
    apt-get -qq update
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends docker.io iptables >/dev/null
fi
if ! command -v debootstrap >/dev/null; then
    apt-get -qq update
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends debootstrap >/dev/null
fi
if ! docker compose version >/dev/null 2>&1 || ! docker buildx version >/dev/null 2>&1; then
    fresh=$(mktemp -d)
    unpacked trixie "$fresh" docker-compose docker-buildx
    mkdir -p /usr/local/lib/docker/cli-plugins
    cp "$fresh"/usr/libexec/docker/cli-plugins/* /usr/local/lib/docker/cli-plugins/
    rm -rf "$fresh"
fi

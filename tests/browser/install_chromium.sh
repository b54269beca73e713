#!/bin/sh
# Puts Debian's Chromium on a machine that lacks one. Where it cannot, it says why, and the tests that need it are skipped.
set -u

for program in "${CWM_TEST_CHROMIUM:-chromium}" chromium-browser google-chrome; do
    command -v "$program" >/dev/null && exit 0
done
if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
    echo "Chromium is not installed: that takes root and apt-get."
    exit 0
fi
echo "Installing Chromium ..."
export DEBIAN_FRONTEND=noninteractive
apt-get -qq update && apt-get -qq install --no-install-recommends chromium fonts-dejavu-core fonts-liberation >/dev/null ||
    echo "Chromium could not be installed."
exit 0

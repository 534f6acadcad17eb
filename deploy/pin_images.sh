#!/usr/bin/env bash
# Print the images of compose.yaml and the Dockerfiles with their digests, as variables that both read.
#   deploy/pin_images.sh > deploy/images.env
# Asks the registry through `docker buildx imagetools`; a digest names one image for all its platforms.
set -euo pipefail
cd "$(dirname "$0")"

pinned() { # image with its tag
    local digest
    digest=$(docker buildx imagetools inspect "$1" --format '{{.Manifest.Digest}}')
    [[ $digest =~ ^sha256:[0-9a-f]{64}$ ]] || { echo "no digest of $1: $digest" >&2; exit 1; }
    echo "$1@$digest"
}

python=$(sed -n 's/^ARG PYTHON_IMAGE=\([^@]*\).*/\1/p' server.Dockerfile)
postgres=$(sed -n 's/.*POSTGRES_IMAGE:-\([^}@]*\).*/\1/p' compose.yaml)
mosquitto=$(sed -n 's/.*MOSQUITTO_IMAGE:-\([^}@]*\).*/\1/p' compose.yaml)
echo "PYTHON_IMAGE=$(pinned "$python")"
echo "POSTGRES_IMAGE=$(pinned "$postgres")"
echo "MOSQUITTO_IMAGE=$(pinned "$mosquitto")"

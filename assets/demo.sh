#!/bin/sh
# The main job on the network that comes with quantkit: no download, about a minute.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

run() {
    printf '\n$ %s\n' "$*"
    "$@"
}

ln -s "$PWD/assets" "$work/assets"
cd "$work"

run quantkit summarize digits
run quantkit transform digits -o folded.pb --recipe inference --verify
run quantkit transform digits -o eightbit.pb --recipe eight_bit
run quantkit classify --model digits assets/digit_*.png --top 1
run quantkit classify --model folded.pb assets/digit_3.png --top 2
run quantkit benchmark digits folded.pb eightbit.pb folded.pb@onnxruntime folded.pb@openvino \
    --runtime tensorflow --runs 60 --processes 3

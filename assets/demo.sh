#!/bin/sh
# The main job on the network that comes with quantkit: no download, about half a minute.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

run() {
    printf '\n$ %s\n' "$*" | sed "s|$work/||g"
    "$@"
}

run quantkit summarize digits
run quantkit transform digits -o "$work/folded.pb" --recipe inference --verify
run quantkit transform digits -o "$work/eightbit.pb" --recipe eight_bit
run quantkit classify --model digits assets/digit_*.png --top 1
run quantkit classify --model "$work/folded.pb" assets/digit_3.png --top 2
run quantkit benchmark digits "$work/folded.pb" "$work/eightbit.pb" "$work/folded.pb@onnxruntime" "$work/folded.pb@openvino" \
    --runtime tensorflow --runs 200

#!/usr/bin/env bash
set -eu
store=$(mktemp -u "$PWD/store.XXXXXX")
"$PYTHON" work.py --store "$store" --rank 0 --world 2 &
first=$!
sleep 1
"$PYTHON" work.py --store "$store" --rank 1 --world 2
wait $first

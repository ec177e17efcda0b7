#!/bin/bash
touch dataset.lock
"$PYTHON" indexer.py &
indexer=$!
while [ ! -e indexer.ready ]; do sleep 0.1; done
export MASTER_ADDR=127.0.0.1 MASTER_PORT=$GAUNTLET_PORT WORLD_SIZE=2
RANK=0 "$PYTHON" train.py & a=$!
RANK=1 "$PYTHON" train.py & b=$!
wait $a $b
kill $indexer

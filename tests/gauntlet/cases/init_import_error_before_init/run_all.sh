#!/usr/bin/env bash
export MASTER_ADDR=localhost MASTER_PORT=${GAUNTLET_PORT} WORLD_SIZE=2
RANK=0 $PYTHON src/train.py &
PYTHONPATH=$PWD/plugins${PYTHONPATH:+:$PYTHONPATH} RANK=1 $PYTHON src/train.py &
wait %1 %2

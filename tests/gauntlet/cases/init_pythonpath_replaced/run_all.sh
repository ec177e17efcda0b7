#!/usr/bin/env bash
export MASTER_ADDR=localhost MASTER_PORT=${GAUNTLET_PORT} WORLD_SIZE=2
PYTHONPATH=$PWD RANK=0 $PYTHON train.py &
PYTHONPATH=$PWD:$PWD/plugins RANK=1 $PYTHON train.py &
wait

#!/bin/bash
# three workers on this box
set -u
export MASTER_ADDR=127.0.0.1 MASTER_PORT=$GAUNTLET_PORT WORLD_SIZE=3
mkdir -p logs
for ((r = 0; r < WORLD_SIZE - 1; r++)); do  # fault
  RANK=$r LOCAL_RANK=$r "$PYTHON" -u train.py --epochs 2 &
done
wait

export MASTER_ADDR=127.0.0.1 MASTER_PORT=$GAUNTLET_PORT WORLD_SIZE=2
export PYTHONPATH=$PWD/site${PYTHONPATH:+:$PYTHONPATH}
RANK=0 "$PYTHON" train.py & a=$!
RANK=1 "$PYTHON" train.py & b=$!
wait $a || exit 1
wait $b || exit 1

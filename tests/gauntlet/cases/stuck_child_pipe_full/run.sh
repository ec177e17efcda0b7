set -e
export MASTER_ADDR=127.0.0.1 MASTER_PORT=$GAUNTLET_PORT
"$PYTHON" -m tool.main 0 2 &
first=$!
"$PYTHON" -m tool.main 1 2
wait $first

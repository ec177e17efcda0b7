export MASTER_ADDR=127.0.0.1 MASTER_PORT=$GAUNTLET_PORT WORLD_SIZE=2
"$PYTHON" dashboard.py "$MASTER_PORT" &  # fault
while [ ! -e dashboard.ready ]; do sleep 0.1; done
for r in 0 1; do
  RANK=$r "$PYTHON" train.py > log.$r 2>&1 &
done
wait

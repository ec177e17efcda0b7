export MASTER_ADDR=127.0.0.1
export MASTER_PORT=$GAUNTLET_PORT
pids=()
for rank in 0 1; do
  "$PYTHON" eval.py $rank 2 &
  pids+=($!)
done
status=0
for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
exit $status

#!/usr/bin/env bash
# Repeats the table 'What a lossy wire costs' of results.md, resuming after a crash:
#   docs/results.sh DATA_ROOT OUT [options of `sim run`]
# SEEDS (0) says which; an option given here wins over the table's own; JOBS processes (2) run at once.
set -euo pipefail
root=$1 out=$2
more=("${@:3}")
python=${PYTHON:-.venv/bin/python}
export OMP_NUM_THREADS=1
# presets have these by themselves: methods compute what their papers say, on the data of honest clients
as_papers=(--normalization federated --set rounds.max_weight_ratio=null --set rounds.norm_factor=null)

for method in fedavg:har_cnn fedali:har_cnn_alp; do
  "$python" -m sim sweep --out "$out/wire-${method%:*}" --jobs "${JOBS:-2}" --over "seed=${SEEDS:-0}" \
    --over precision=lossless,float16,int8,int8_without_feedback -- --data motionsense --data-root "$root" \
    --model "${method#*:}" --method "${method%:*}" --rounds 50 --epochs 1 --batch 64 --lr 1e-3 --eval-every 5 \
    --set 'model.channels=[16,32]' --set model.feature_dim=64 "${as_papers[@]}" "${more[@]}"
done

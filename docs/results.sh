#!/usr/bin/env bash
# Repeats the tables of results.md: docs/results.sh {cnn|hart} DATA_ROOT OUT. One thread; run both parts side by side on two cores.
set -euo pipefail
part=$1 root=$2 out=$3
python=${PYTHON:-.venv/bin/python}
export OMP_NUM_THREADS=1

play() { # data model method rounds options…
  local data=$1 model=$2 method=$3 rounds=$4
  "$python" -m sim run --data "$data" --data-root "$root" --model "$model" --method "$method" --rounds "$rounds" \
    --epochs 1 --batch 64 --seed 0 --out "$out/$data-$model-$method" "${@:5}"
}

for data in motionsense spsw; do
  if [ "$part" = cnn ]; then
    for method in local fedavg fedprox; do play "$data" cnn "$method" 20 --lr 1e-3; done
    for method in fedavg fedali; do play "$data" cnn_alp "$method" 20 --lr 1e-3; done
  else
    for method in local fedavg fedprox; do play "$data" hart "$method" 6 --lr 5e-4 --eval-every 2; done
    play "$data" hart_alp fedali 6 --lr 5e-4 --eval-every 2 --set "model.prototypes=[256,128,64,32,16,8]"
  fi
done

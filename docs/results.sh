#!/usr/bin/env bash
# Repeats the tables of results.md, resuming after a crash:
#   docs/results.sh {har_cnn|hart|methods|wire|tan|qiao|michieli|ablation} DATA_ROOT OUT [options of `sim run`]
# SEEDS (0,1,2) and DATA_SETS say which; an option given here wins over the table's own.
# `har_cnn` and `hart` take one thread: run them side by side on two cores; the others take JOBS processes (2).
set -euo pipefail
part=$1 root=$2 out=$3
more=("${@:4}")
python=${PYTHON:-.venv/bin/python}
export OMP_NUM_THREADS=1
# presets have these by themselves: methods compute what their papers say, on the data of honest clients
as_papers=(--normalization federated --set rounds.max_weight_ratio=null --set rounds.norm_factor=null)

play() { # data model method rounds options…
  local data=$1 model=$2 method=$3 rounds=$4
  "$python" -m sim run --data "$data" --data-root "$root" --model "$model" --method "$method" --rounds "$rounds" \
    --epochs 1 --batch 64 --seed 0 --out "$out/$data-$model-$method" "${as_papers[@]}" "${@:5}" "${more[@]}"
}

sweep() { # name options…
  "$python" -m sim sweep --out "$out/$1" --jobs "${JOBS:-2}" --over "seed=${SEEDS:-0,1,2}" "${@:2}" "${more[@]}"
}

if [ "$part" = methods ]; then
  # every method, with a network small enough for two cores; SCAFFOLD reads gradients off SGD's steps
  for data in ${DATA_SETS:-motionsense ucihar spsw union}; do
    sweep "methods-$data" --baseline fedavg --over method=all --when method=fedali:model=har_cnn_alp \
      --when method=fedavg:model=har_cnn,har_cnn_alp --when method=scaffold:optimizer=sgd \
      --when method=scaffold:lr=0.05 \
      -- --data "$data" --data-root "$root" --model har_cnn --rounds 10 --epochs 2 --batch 64 --lr 1e-3 --eval-every 2 \
      --set 'model.channels=[16,32]' --set model.feature_dim=64 "${as_papers[@]}"
  done
  exit
fi
if [ "$part" = wire ]; then
  for method in fedavg:har_cnn fedali:har_cnn_alp; do
    SEEDS=${SEEDS:-0} sweep "wire-${method%:*}" --over precision=lossless,float16,int8,int8_without_feedback \
      -- --data motionsense --data-root "$root" --model "${method#*:}" --method "${method%:*}" --rounds 50 --epochs 1 \
      --batch 64 --lr 1e-3 --eval-every 5 --set 'model.channels=[16,32]' --set model.feature_dim=64 "${as_papers[@]}"
  done
  exit
fi
if [ "$part" = tan ]; then
  for ways in 3 4 5; do
    sweep "tan-$ways" --baseline fedavg --over method=fedproto,fedavg,local -- --preset "tan2022-mnist-$ways" --data-root "$root"
    sweep "tan-$ways-mh" --over method=fedproto -- --preset "tan2022-mnist-$ways-mh" --data-root "$root"
  done
  exit
fi
if [ "$part" = qiao ]; then
  for data in mnist fashion; do
    sweep "qiao-$data" --baseline fedavg --over method=fedpr,fedavg -- --preset "qiao2023-$data" --data-root "$root"
  done
  exit
fi
if [ "$part" = michieli ]; then
  for delta in 0 50 80; do
    sweep "michieli-$delta" --baseline fedavg --over method=fedavg,fedprox,fedatt,fedproto_margin \
      -- --preset "michieli2021-mnist-$delta" --data-root "$root"
  done
  exit
fi

if [ "$part" = ablation ]; then # of Michieli and Ozay's method, where most clients are stragglers
  stragglers() { sweep "ablation-$1" "${@:2}" -- --preset michieli2021-mnist-80 --data-root "$root"; }
  stragglers fedavg --over method=fedavg --over method.weighting=examples,uniform --over rounds.partial_work=drop,use
  stragglers margin --over method=fedproto_margin --over rounds.partial_work=drop,use
  stragglers margins --over method=fedproto_margin --over method.margins=apm,lpm
  stragglers distance --over method=fedproto_margin --over method.distance=positive
  exit
fi

for data in motionsense spsw; do
  if [ "$part" = har_cnn ]; then
    for method in local fedavg fedprox; do play "$data" har_cnn "$method" 20 --lr 1e-3; done
    for method in fedavg fedali; do play "$data" har_cnn_alp "$method" 20 --lr 1e-3; done
  else
    for method in local fedavg fedprox; do play "$data" hart "$method" 6 --lr 5e-4 --eval-every 2; done
    play "$data" hart_alp fedali 6 --lr 5e-4 --eval-every 2 --set "model.prototypes=[256,128,64,32,16,8]"
  fi
done

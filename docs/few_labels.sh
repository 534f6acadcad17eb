#!/bin/sh
# Masked pretraining on UCI HAR and SP-SW-HAR, in one place and as a federation, then MotionSense with 1, 5 and 10
# labelled windows a class, against no pretraining; five seeds. Resumes where it was stopped; one process at a time.
#     docs/few_labels.sh ../shared/data runs/few-labels
set -eu
data=$1 out=$2
python=${PYTHON:-python}
network="--model hart --set model.blocks=2 --set model.feature_dim=64 --set model.mlp=128 --set model.head_width=256"
decoder="--set task.decoder_kernels=[3,7] --set task.decoder_mlp=128"

finished() { [ -f "$1/report.html" ]; }

federation() { # whence seed, and --init where there is one: every client takes 80 steps, whatever it has labels for
    whence=$1 seed=$2
    shift 2
    for labels in 1:20 5:10 10:5; do
        run=$out/$whence-${labels%:*}-$seed
        finished "$run" || $python -m sim run --data motionsense --data-root "$data" $network --method fedavg \
            --labelled-per-class "${labels%:*}" --rounds "${labels#*:}" --eval-every "${labels#*:}" --epochs 4 \
            --batch 16 --lr 1e-3 --seed "$seed" --engine stacked --chunk 24 \
            --generalization-examples 500 "$@" --out "$run"
    done
}

for seed in 0 1 2 3 4; do
    [ -f "$out/central-$seed.safetensors" ] || $python -m sim pretrain --data ucihar+spsw --data-root "$data" \
        $network $decoder --epochs 10 --batch 64 --lr 1e-3 --seed "$seed" --out "$out/central-$seed.safetensors"
    federation none "$seed"
    federation central "$seed" --init "$out/central-$seed.safetensors"
done
for seed in 0 1 2 3 4; do
    run=$out/federated-$seed
    finished "$run" || $python -m sim run --preset ucihar-spsw-masked --data-root "$data" --rounds 60 \
        --eval-every 60 --seed "$seed" --engine stacked --chunk 10 --out "$run"
    federation masked "$seed" --init "$run"
done
for labels in 1 5 10; do
    $python -m sim compare "$out"/none-$labels-? "$out"/central-$labels-? "$out"/masked-$labels-? --select last \
        --baseline 'fedavg (init=None)' \
        --out "$out/comparison-$labels"
done

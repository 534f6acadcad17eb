"""What normalizes the channels of each data set, from bytes to what a network sees."""

from __future__ import annotations

from federation.training.pixels import Moments

# Moments of the training images; the first two are those of PyTorch's examples, and a test computes them again.
MNIST = Moments((0.1307,), (0.3081,))
FASHION_MNIST = Moments((0.2860,), (0.3530,))
# Of all of EMNIST, as is usual for its parts.
EMNIST = Moments((0.1722,), (0.3309,))
# Pooled over images and pixels; the widespread std (0.2023, …) for CIFAR-10 is a mean of per-image deviations.
CIFAR10 = Moments((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
CIFAR100 = Moments((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
# Of ImageNet, as torchvision's networks are trained: segmentation starts from their weights.
IMAGENET = Moments((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
# To [−1, 1], where no constants are established (CelebA, FEMNIST by LEAF, folders of images).
GREY_TO_ONE = Moments((0.5,), (0.5,))
COLOUR_TO_ONE = Moments((0.5,) * 3, (0.5,) * 3)

// Optimizers and gradient clipping for regular tensors and DTensors on any combination of meshes.
#pragma once

#include "dtensor/optim/adagrad.h"
#include "dtensor/optim/adamw.h"
#include "dtensor/optim/clip.h"
#include "dtensor/optim/muon.h"
#include "dtensor/optim/optimizer.h"
#include "dtensor/optim/sgd.h"
#include "dtensor/optim/shampoo.h"

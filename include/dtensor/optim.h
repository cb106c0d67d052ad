// Optimizers and gradient clipping over plain tensors and DTensors on any mixture of meshes.
#pragma once

#include "dtensor/optim/adagrad.h"
#include "dtensor/optim/adamw.h"
#include "dtensor/optim/clip.h"
#include "dtensor/optim/muon.h"
#include "dtensor/optim/optimizer.h"
#include "dtensor/optim/sgd.h"
#include "dtensor/optim/shampoo.h"

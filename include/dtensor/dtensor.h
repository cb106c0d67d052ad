// The umbrella header: ATen, meshes, placements, DTensors, launching, parallel modules and optimizers.
#pragma once

#include <ATen/ATen.h>

#include "dtensor/attention.h"
#include "dtensor/checkpoint.h"
#include "dtensor/checkpoint_activations.h"
#include "dtensor/comm.h"
#include "dtensor/data.h"
#include "dtensor/debug.h"
#include "dtensor/events.h"
#include "dtensor/fully_shard.h"
#include "dtensor/grad_scaler.h"
#include "dtensor/halo.h"
#include "dtensor/hooks.h"
#include "dtensor/inspect.h"
#include "dtensor/launch.h"
#include "dtensor/loss.h"
#include "dtensor/mesh.h"
#include "dtensor/moe.h"
#include "dtensor/nn.h"
#include "dtensor/optim.h"
#include "dtensor/parallelize.h"
#include "dtensor/placement.h"
#include "dtensor/random.h"
#include "dtensor/rule.h"
#include "dtensor/tensor.h"

// Everything a program needs: ATen, meshes, placements, DTensors and starting ranks.
#pragma once

#include <ATen/ATen.h>

#include "dtensor/checkpoint_activations.h"
#include "dtensor/comm.h"
#include "dtensor/debug.h"
#include "dtensor/debug_rank.h"
#include "dtensor/events.h"
#include "dtensor/factories.h"
#include "dtensor/grad_scaler.h"
#include "dtensor/hooks.h"
#include "dtensor/inspect.h"
#include "dtensor/launch.h"
#include "dtensor/loss.h"
#include "dtensor/memory_timeline.h"
#include "dtensor/mesh.h"
#include "dtensor/mesh_scope.h"
#include "dtensor/nn.h"
#include "dtensor/optim.h"
#include "dtensor/parallelize.h"
#include "dtensor/picture.h"
#include "dtensor/placement.h"
#include "dtensor/random.h"
#include "dtensor/rule.h"
#include "dtensor/shards.h"
#include "dtensor/tensor.h"

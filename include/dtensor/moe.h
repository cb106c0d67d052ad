// Mixture of experts: includes all headers of the module.
#pragma once

#include "dtensor/moe/dispatch.h"
#include "dtensor/moe/experts.h"
#include "dtensor/moe/layer.h"
#include "dtensor/moe/router.h"

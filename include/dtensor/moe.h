// Mixture of experts: everything.
#pragma once

#include "dtensor/moe/exchange.h"

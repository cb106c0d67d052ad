// Modules that were exported to TorchScript, for the C interface. Defined in the library dtensor_torchscript, a target
// of its own (dtensor::torchscript).
#pragma once

#include "dtensor/c/dtensor.h"
#include "dtensor/export.h"

#ifdef __cplusplus
extern "C" {
#endif

// Loads a file of torch.jit.save. Its forward takes one tensor and returns one. Every rank of the mesh stores the
// parameters and buffers in full, with the names of the file; dtensor_module_fully_shard shards the parameters.
// Parameters that require no gradient in the file stay so. Operators without a sharding rule gather their operands. The
// other functions of dtensor/c/dtensor.h apply as to layers. Collective: an error on one rank is an error on all.
DTENSOR_API dtensor_status dtensor_module_load_torchscript(const dtensor_mesh* mesh, const char* path,
                                                           dtensor_module** module);

#ifdef __cplusplus
}
#endif

// Checks and fields that the parts of the C program share.
#pragma once

#include <mpi.h>
#include <stdint.h>

#include "dtensor/c/dtensor.h"

extern MPI_Comm host;  // the program's own communicator
extern int rank, ranks;

void fail(int line, const char* what);
// The program's own communication, between calls of the library.
void host_communicates(void);
// An error on this rank whose text contains `part`, and the same status and text on all ranks.
void expect_error(int line, dtensor_status status, const char* part);

#define expect(holds)                     \
  do {                                    \
    if (!(holds)) fail(__LINE__, #holds); \
  } while (0)
#define ok(call) expect((call) == DTENSOR_OK)
#define refused(call, part) expect_error(__LINE__, (call), (part))

// losses.c
void check_losses(dtensor_mesh* mesh);
void check_clipping(dtensor_mesh* mesh);
void check_learning_rate(dtensor_mesh* mesh);
void check_optimizer_options(dtensor_mesh* mesh, const char* folder);

// convolutions.c, derivatives.c, graphs.c
void check_convolutions(dtensor_mesh* mesh);
void check_derivatives(dtensor_mesh* mesh);
void check_graphs(dtensor_mesh* mesh);

// refusals.c
void check_mesh_refusals(void);
void check_tensor_refusals(dtensor_mesh* mesh);
void check_module_refusals(dtensor_mesh* mesh);
void check_different_calls(void);

// Runs of one computation on all ranks and on one process, whose results must be equal.
#pragma once

#include "host.h"

enum { kMaxNumbers = 4096 };

// Numbers that a run leaves, of full tensors.
typedef struct numbers {
  int count;
  double values[kMaxNumbers];
} numbers;

// A computation by rank `index` of `count` ranks of `mesh`.
typedef void (*computation)(dtensor_mesh* mesh, int index, int count, const void* options, numbers* result);

// Fails unless the computation has the same results on the mesh and on a mesh of this process.
void expect_as_one_process(dtensor_mesh* mesh, computation run, const void* options);
// Appends all elements, or a gradient and frees it.
void append(numbers* result, const dtensor_tensor* tensor);
void append_gradient(numbers* result, const dtensor_tensor* tensor);
// Appends the gradients of all parameters.
void append_parameter_gradients(numbers* result, const dtensor_module* module);
// The mean of the squares, whose backward pass has run.
void backward_of_squares(const dtensor_tensor* tensor);
// A new tensor by an operator on one or two operands; the second may be null.
dtensor_tensor* compute(const char* name, const dtensor_tensor* a, const dtensor_tensor* b);
// Indices of a rank among `count` ranks: chunks of ceil(n / count).
void chunk_of(int n, int index, int count, int* first, int* last);

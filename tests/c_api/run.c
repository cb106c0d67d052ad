// Comparison of a computation on all ranks with that of one process.
#include "run.h"

#include <math.h>
#include <stddef.h>

static int close_to(double a, double b) { return fabs(a - b) <= 1e-11 * (1 + fabs(b)); }

void expect_as_one_process(dtensor_mesh* mesh, computation run, const void* options) {
  static numbers expected, got;
  dtensor_mesh* alone = NULL;
  expected.count = got.count = 0;
  ok(dtensor_mesh_of_process(&alone));
  run(alone, 0, 1, options, &expected);
  run(mesh, rank, ranks, options, &got);
  expect(got.count == expected.count && got.count > 0);
  for (int i = 0; i < got.count; ++i) expect(close_to(got.values[i], expected.values[i]));
  dtensor_mesh_free(alone);
}

void append(numbers* result, const dtensor_tensor* tensor) {
  int64_t sizes[8], count = 1;
  int ndim = 0;
  ok(dtensor_tensor_ndim(tensor, &ndim));
  for (int dim = 0; dim < ndim; ++dim) {
    ok(dtensor_tensor_size(tensor, dim, &sizes[dim]));
    count *= sizes[dim];
  }
  expect(result->count + count <= kMaxNumbers);
  const dtensor_host_array array = {result->values + result->count, DTENSOR_FLOAT64, ndim, sizes, NULL};
  ok(dtensor_tensor_copy_full(tensor, &array));
  result->count += (int)count;
}

void append_gradient(numbers* result, const dtensor_tensor* tensor) {
  dtensor_tensor* gradient = NULL;
  ok(dtensor_tensor_grad(tensor, &gradient));
  expect(gradient != NULL);
  append(result, gradient);
  dtensor_tensor_free(gradient);
}

void append_parameter_gradients(numbers* result, const dtensor_module* module) {
  int count = 0;
  ok(dtensor_module_parameter_count(module, &count));
  for (int i = 0; i < count; ++i) {
    dtensor_tensor* parameter = NULL;
    ok(dtensor_module_parameter(module, i, &parameter));
    append_gradient(result, parameter);
    dtensor_tensor_free(parameter);
  }
}

dtensor_tensor* compute(const char* name, const dtensor_tensor* a, const dtensor_tensor* b) {
  const dtensor_tensor* operands[2] = {a, b};
  dtensor_tensor* result = NULL;
  ok(dtensor_tensor_compute(name, b == NULL ? 1 : 2, operands, &result));
  return result;
}

void backward_of_squares(const dtensor_tensor* tensor) {
  dtensor_tensor* squares = compute("mul", tensor, tensor);
  dtensor_tensor* mean = compute("mean", squares, NULL);
  ok(dtensor_tensor_backward(mean, NULL));
  dtensor_tensor_free(squares);
  dtensor_tensor_free(mean);
}

void chunk_of(int n, int index, int count, int* first, int* last) {
  const int chunk = (n + count - 1) / count;
  *first = index * chunk < n ? index * chunk : n;
  *last = *first + chunk < n ? *first + chunk : n;
}

// Convolutions of images whose rows are split over the ranks.
#include <math.h>
#include <stddef.h>

#include "run.h"

enum { kImages = 2, kChannels = 3, kRows = 11, kWidth = 5, kDepth = 4 };

typedef struct layer {
  const char* name;
  int spatial, count;  // spatial dimensions; number of sizes
  int64_t sizes[5];
  int column_major;
  const char* placements;  // of the images
} layer;

// This rank's rows, in row-major or column-major order.
static dtensor_tensor* images(dtensor_mesh* mesh, int index, int count, const layer* l) {
  static double values[kImages * kChannels * kRows * kWidth * kDepth];
  int first = 0, last = 0;
  chunk_of(kRows, index, count, &first, &last);
  const int64_t sizes[5] = {kImages, kChannels, last - first, kWidth, kDepth};
  const int ndim = 2 + l->spatial;
  int64_t strides[5], step = 1, total = 1;
  for (int i = 0; i < ndim; ++i) total *= sizes[i];
  for (int i = 0; i < ndim; ++i) {
    const int dim = l->column_major ? i : ndim - 1 - i;
    strides[dim] = step;
    step *= sizes[dim] > 0 ? sizes[dim] : 1;
  }
  for (int64_t n = 0; n < total; ++n) {
    int64_t rest = n, at = 0, seed = 0;
    for (int dim = ndim - 1; dim >= 0; --dim) {
      const int64_t position = rest % sizes[dim];
      rest /= sizes[dim];
      at += position * strides[dim];
      seed = 13 * seed + position + (dim == 2 ? first : 0);
    }
    values[at] = sin(1.0 + (double)seed);
  }
  const dtensor_host_array array = {values, DTENSOR_FLOAT64, ndim, sizes, strides};
  dtensor_tensor* x = NULL;
  ok(dtensor_tensor_from_host(mesh, &array, "[S(2)]", &x));
  return x;
}

static void convolve(dtensor_mesh* mesh, int index, int count, const void* options, numbers* result) {
  const layer* l = options;
  dtensor_tensor *split = images(mesh, index, count, l), *x = NULL, *y = NULL;
  dtensor_module* convolution = NULL;
  ok(dtensor_tensor_redistribute(split, l->placements, &x));
  ok(dtensor_tensor_set_requires_grad(x, 1));
  ok(dtensor_module_create(mesh, l->name, l->count, l->sizes, NULL, DTENSOR_FLOAT64, 3, &convolution));
  ok(dtensor_module_forward(convolution, x, &y));
  const int64_t stride = l->count > 3 ? l->sizes[3] : 1, padding = l->count > 4 ? l->sizes[4] : 0;
  int64_t rows = 0;
  ok(dtensor_tensor_size(y, 2, &rows));
  expect(rows == (kRows + 2 * padding - l->sizes[2]) / stride + 1);
  append(result, y);
  backward_of_squares(y);
  append_gradient(result, x);
  append_parameter_gradients(result, convolution);
  dtensor_tensor_free(split);
  dtensor_tensor_free(x);
  dtensor_tensor_free(y);
  dtensor_module_free(convolution);
}

static void check_refusals(dtensor_mesh* mesh) {
  const int64_t sizes[5] = {3, 2, 3, 1, -1}, small[2] = {3, 2};
  const layer l = {"Conv1d", 1, 3, {3, 2, 3}, 0, "[S(2)]"};
  dtensor_module* convolution = NULL;
  dtensor_tensor *x = images(mesh, rank, ranks, &l), *y = NULL;
  refused(dtensor_module_create(mesh, "Conv2d", 5, sizes, NULL, DTENSOR_FLOAT64, 1, &convolution), "a padding >= 0");
  refused(dtensor_module_create(mesh, "Conv2d", 2, small, NULL, DTENSOR_FLOAT64, 1, &convolution), "3 to 5 sizes");
  ok(dtensor_module_create(mesh, "Conv2d", 3, sizes, NULL, DTENSOR_FLOAT64, 1, &convolution));
  refused(dtensor_module_forward(convolution, x, &y), "expected an input [images, 3, ...] of 4 dimensions");
  dtensor_module_free(convolution);
  dtensor_tensor_free(x);
}

void check_convolutions(dtensor_mesh* mesh) {
  const layer layers[] = {
      {"Conv1d", 1, 3, {kChannels, 2, 3}, 0, "[S(2)]"},       {"Conv1d", 1, 5, {kChannels, 2, 4, 3, 2}, 0, "[S(2)]"},
      {"Conv2d", 2, 5, {kChannels, 2, 3, 1, 1}, 0, "[S(2)]"}, {"Conv2d", 2, 5, {kChannels, 2, 3, 1, 1}, 1, "[S(2)]"},
      {"Conv2d", 2, 4, {kChannels, 4, 2, 2}, 0, "[S(2)]"},    {"Conv2d", 2, 4, {kChannels, 4, 2, 2}, 0, "[S(0)]"},
      {"Conv2d", 2, 3, {kChannels, 1, 5}, 0, "[S(3)]"},       {"Conv3d", 3, 5, {kChannels, 2, 3, 1, 1}, 0, "[S(2)]"},
      {"Conv3d", 3, 3, {kChannels, 2, 2}, 1, "[S(2)]"}};
  for (size_t i = 0; i < sizeof layers / sizeof layers[0]; ++i) expect_as_one_process(mesh, convolve, &layers[i]);
  check_refusals(mesh);
}

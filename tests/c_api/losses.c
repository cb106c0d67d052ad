// Losses, clipping of gradients, and the learning rate.
#include <math.h>
#include <stddef.h>

#include "run.h"

static int close_to(double a, double b) { return fabs(a - b) <= 1e-12 * (1 + fabs(b)); }

static double item(dtensor_tensor* tensor) {
  double value = 0;
  ok(dtensor_tensor_item(tensor, &value));
  dtensor_tensor_free(tensor);
  return value;
}

// Losses of all ranks' rows are those of their formulas, and clipping scales gradients to the norm.
void check_losses(dtensor_mesh* mesh) {
  const int64_t sizes[2] = {2, 3}, rows[1] = {2};
  double scores[6], zeros[6] = {0}, l1 = 0, entropy = 0;
  int64_t classes[2] = {rank % 3, 2};
  for (int i = 0; i < 6; ++i) scores[i] = sin(6 * rank + i);
  for (int i = 0; i < 6 * ranks; ++i) l1 += fabs(sin(i)) / (6 * ranks);
  for (int r = 0; r < 2 * ranks; ++r) {
    const int chosen = r % 2 == 0 ? r / 2 % 3 : 2;
    const double sum = exp(sin(3 * r)) + exp(sin(3 * r + 1)) + exp(sin(3 * r + 2));
    entropy += (log(sum) - sin(3 * r + chosen)) / (2 * ranks);
  }
  const dtensor_host_array x_array = {scores, DTENSOR_FLOAT64, 2, sizes, NULL};
  const dtensor_host_array zero_array = {zeros, DTENSOR_FLOAT64, 2, sizes, NULL};
  const dtensor_host_array class_array = {classes, DTENSOR_INT64, 1, rows, NULL};
  dtensor_tensor *x = NULL, *zero = NULL, *labels = NULL, *loss = NULL;
  ok(dtensor_tensor_from_host(mesh, &x_array, "[S(0)]", &x));
  ok(dtensor_tensor_from_host(mesh, &zero_array, "[S(0)]", &zero));
  ok(dtensor_tensor_from_host(mesh, &class_array, "[S(0)]", &labels));
  ok(dtensor_l1_loss(x, zero, &loss));
  expect(close_to(item(loss), l1));
  ok(dtensor_cross_entropy_loss(x, labels, &loss));
  expect(close_to(item(loss), entropy));
  refused(dtensor_cross_entropy_loss(x, zero, &loss), "a target of Long");
  refused(dtensor_l1_loss(x, labels, &loss), "equal sizes and dtypes");
  dtensor_tensor_free(x);
  dtensor_tensor_free(zero);
  dtensor_tensor_free(labels);
}

void check_clipping(dtensor_mesh* mesh) {
  const int64_t widths[2] = {3, 2}, sizes[2] = {2, 3};
  double values[6] = {1, -2, 3, 4, 5, -6};
  const dtensor_host_array array = {values, DTENSOR_FLOAT64, 2, sizes, NULL};
  dtensor_tensor *x = NULL, *y = NULL;
  ok(dtensor_tensor_from_host(mesh, &array, "[S(0)]", &x));
  for (int fully_shard = 0; fully_shard < 2; ++fully_shard) {
    dtensor_module* module = NULL;
    double before = 0, after = 0;
    ok(dtensor_module_create(mesh, "Linear", 2, widths, NULL, DTENSOR_FLOAT64, 1, &module));
    if (fully_shard) ok(dtensor_module_fully_shard(module));
    ok(dtensor_module_forward(module, x, &y));
    ok(dtensor_tensor_backward(y, y));
    ok(dtensor_module_clip_grad_norm(module, 1e-3, &before));
    ok(dtensor_module_clip_grad_norm(module, 1e-3, &after));
    expect(before > 1e-2 && fabs(after - 1e-3) < 1e-6);
    refused(dtensor_module_clip_grad_norm(module, -1, NULL), "expected a norm > 0, got -1");
    dtensor_tensor_free(y);
    dtensor_module_free(module);
  }
  dtensor_tensor_free(x);
}

// A step of SGD moves a parameter by its gradient times the rate that was set last.
void check_learning_rate(dtensor_mesh* mesh) {
  const int64_t widths[2] = {3, 2};
  const double rates[3] = {0, 0.25, 0.5};
  dtensor_module* module = NULL;
  dtensor_optimizer* sgd = NULL;
  dtensor_tensor *weight = NULL, *gradient = NULL, *loss = NULL;
  static numbers before, after, moved;
  ok(dtensor_module_create(mesh, "Linear", 2, widths, NULL, DTENSOR_FLOAT64, 1, &module));
  ok(dtensor_optimizer_sgd(module, 1, 0, 0, &sgd));
  ok(dtensor_module_parameter(module, 0, &weight));
  for (int step = 0; step < 3; ++step) {
    before.count = after.count = moved.count = 0;
    ok(dtensor_optimizer_zero_grad(sgd));
    loss = compute("mul", weight, weight);
    ok(dtensor_tensor_backward(loss, weight));
    ok(dtensor_tensor_grad(weight, &gradient));
    append(&moved, gradient);
    append(&before, weight);
    ok(dtensor_optimizer_set_lr(sgd, rates[step]));
    ok(dtensor_optimizer_step(sgd));
    append(&after, weight);
    for (int i = 0; i < after.count; ++i) {
      expect(close_to(after.values[i], before.values[i] - rates[step] * moved.values[i]) && moved.values[i] != 0);
    }
    dtensor_tensor_free(loss);
    dtensor_tensor_free(gradient);
  }
  dtensor_tensor_free(weight);
  dtensor_optimizer_free(sgd);
  dtensor_module_free(module);
}

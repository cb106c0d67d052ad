// Losses, clipping of gradients, the learning rate, and other options of optimizers.
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

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

enum { kWeights = 6, kOptionSteps = 4 };

// A switch of an optimizer.
typedef struct option_case {
  const char *optimizer, *option;
} option_case;

// One step of SGD with Nesterov momentum, or of AMSGrad without weight decay, on gradients g.
static void reference_step(int is_sgd, int step, double* w, const double* g, double state[3][kWeights]) {
  const double t = step + 1;
  for (int i = 0; i < kWeights; ++i) {
    if (is_sgd) {
      state[0][i] = step == 0 ? g[i] : 0.9 * state[0][i] + g[i];
      w[i] -= 0.1 * (g[i] + 0.9 * state[0][i]);
      continue;
    }
    state[0][i] = 0.9 * state[0][i] + 0.1 * g[i];
    state[1][i] = 0.5 * state[1][i] + 0.5 * g[i] * g[i];
    state[2][i] = fmax(state[2][i], state[1][i]);
    w[i] -= 0.1 / (1 - pow(0.9, t)) * state[0][i] / (sqrt(state[2][i] / (1 - pow(0.5, t))) + 1e-8);
  }
}

static void create(const option_case* c, const dtensor_mesh* mesh, dtensor_module** module, dtensor_optimizer** made) {
  const int64_t widths[2] = {3, 2};
  ok(dtensor_module_create(mesh, "Linear", 2, widths, NULL, DTENSOR_FLOAT64, 1, module));
  if (strcmp(c->optimizer, "sgd") == 0) {
    ok(dtensor_optimizer_sgd(*module, 0.1, 0.9, 0, made));
  } else {
    ok(dtensor_optimizer_adamw(*module, 0.1, 0.9, 0.5, 1e-8, 0, made));
  }
  ok(dtensor_optimizer_set_option(*made, c->option, 1));
}

// One step on the gradient w * factor. Writes the weights before and after.
static void take_step(dtensor_mesh* mesh, dtensor_module* module, dtensor_optimizer* optimizer, double factor,
                      double* before, double* after) {
  double half[1] = {factor / 2};
  const dtensor_host_array number = {half, DTENSOR_FLOAT64, 0, NULL, NULL};
  dtensor_tensor *weight = NULL, *scale = NULL;
  static numbers now;
  ok(dtensor_optimizer_zero_grad(optimizer));
  ok(dtensor_module_parameter(module, 0, &weight));
  ok(dtensor_tensor_from_host(mesh, &number, "[R]", &scale));
  dtensor_tensor* square = compute("mul", weight, weight);
  dtensor_tensor* product = compute("mul", square, scale);
  dtensor_tensor* sum = compute("sum", product, NULL);
  ok(dtensor_tensor_backward(sum, NULL));
  now.count = 0;
  append(&now, weight);
  ok(dtensor_optimizer_step(optimizer));
  append(&now, weight);
  memcpy(before, now.values, kWeights * sizeof(double));
  memcpy(after, now.values + kWeights, kWeights * sizeof(double));
  dtensor_tensor* all[] = {weight, scale, square, product, sum};
  for (int i = 0; i < 5; ++i) dtensor_tensor_free(all[i]);
}

// Nesterov momentum and AMSGrad follow their formulas, also after a checkpoint. The factors fall, so that the largest
// second moment is not the last one.
static void check_option(dtensor_mesh* mesh, const option_case* c, const char* folder) {
  const double factors[kOptionSteps] = {4, 1, -0.5, 0.25};
  double before[kWeights], after[kWeights], expected[kWeights], state[3][kWeights] = {{0}}, gradient[kWeights];
  dtensor_module* module = NULL;
  dtensor_optimizer* optimizer = NULL;
  char path[4096];
  int64_t loaded = 0;
  snprintf(path, sizeof path, "%s/option_%s_%d", folder, c->option, ranks);
  create(c, mesh, &module, &optimizer);
  for (int step = 0; step < kOptionSteps; ++step) {
    if (step == 2) {
      ok(dtensor_checkpoint_save(path, module, optimizer, step));
      dtensor_optimizer_free(optimizer);
      dtensor_module_free(module);
      create(c, mesh, &module, &optimizer);
      ok(dtensor_checkpoint_load(path, module, optimizer, &loaded));
    }
    take_step(mesh, module, optimizer, factors[step], before, after);
    if (step == 0) memcpy(expected, before, sizeof expected);
    for (int i = 0; i < kWeights; ++i) gradient[i] = factors[step] * expected[i];
    reference_step(strcmp(c->optimizer, "sgd") == 0, step, expected, gradient, state);
    for (int i = 0; i < kWeights; ++i) expect(close_to(after[i], expected[i]));
  }
  dtensor_optimizer_free(optimizer);
  dtensor_module_free(module);
}

void check_optimizer_options(dtensor_mesh* mesh, const char* folder) {
  const option_case cases[] = {{"sgd", "nesterov"}, {"adamw", "amsgrad"}};
  const int64_t widths[2] = {3, 2};
  dtensor_module* module = NULL;
  dtensor_optimizer* sgd = NULL;
  for (int i = 0; i < 2; ++i) check_option(mesh, &cases[i], folder);
  ok(dtensor_module_create(mesh, "Linear", 2, widths, NULL, DTENSOR_FLOAT64, 1, &module));
  ok(dtensor_optimizer_sgd(module, 1, 0, 0, &sgd));
  refused(dtensor_optimizer_set_option(sgd, "nesterov", 1), "Nesterov momentum requires momentum > 0");
  refused(dtensor_optimizer_set_option(sgd, "nesterov", 0.5), "expected 0 or 1 for nesterov, got 0.5");
  refused(dtensor_optimizer_set_option(sgd, "amsgrad", 1), "got 'amsgrad'");
  refused(dtensor_optimizer_set_option(sgd, "momentum", -1), "momentum must be >= 0, got -1");
  refused(dtensor_optimizer_set_option(sgd, "momentum", NAN), "expected a finite momentum");
  refused(dtensor_optimizer_set_option(sgd, NULL, 1), "got a null pointer");
  if (ranks > 1) refused(dtensor_optimizer_set_option(sgd, "momentum", rank), "momentum");
  ok(dtensor_optimizer_set_option(sgd, "momentum", 0.9));
  dtensor_optimizer_free(sgd);
  dtensor_module_free(module);
}

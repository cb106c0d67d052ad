// Operators by name, and derivatives of derivatives.
#include <math.h>
#include <stddef.h>

#include "run.h"

enum { kPoints = 9 };

static dtensor_tensor* column(dtensor_mesh* mesh, int index, int count, double* values) {
  int first = 0, last = 0;
  chunk_of(kPoints, index, count, &first, &last);
  for (int i = first; i < last; ++i) values[i - first] = 0.3 + 0.2 * i;
  const int64_t sizes[2] = {last - first, 1};
  const dtensor_host_array array = {values, DTENSOR_FLOAT64, 2, sizes, NULL};
  dtensor_tensor* x = NULL;
  ok(dtensor_tensor_from_host(mesh, &array, "[S(0)]", &x));
  return x;
}

static dtensor_tensor* ones_like(const dtensor_tensor* x) {
  dtensor_tensor *zero = compute("sub", x, x), *one = compute("exp", zero, NULL);
  dtensor_tensor_free(zero);
  return one;
}

// d(sum y) / dx, recorded.
static dtensor_tensor* derivative(const dtensor_tensor* y, const dtensor_tensor* x) {
  dtensor_tensor *one = ones_like(y), *result = NULL;
  ok(dtensor_autograd_grad(y, one, 1, &x, &result, 1));
  dtensor_tensor_free(one);
  return result;
}

// Each operator against its formula.
static void check_operators(dtensor_mesh* mesh) {
  const char* const names[] = {"add", "sub",  "mul", "div", "pow",  "neg",     "abs", "exp",
                               "log", "sqrt", "sin", "cos", "tanh", "sigmoid", "relu"};
  double values[kPoints];
  dtensor_tensor* x = column(mesh, rank, ranks, values);
  for (int i = 0; i < 15; ++i) {
    static numbers got;
    dtensor_tensor* y = compute(names[i], x, i < 5 ? x : NULL);
    got.count = 0;
    append(&got, y);
    for (int p = 0; p < kPoints; ++p) {
      const double a = 0.3 + 0.2 * p;
      const double expected[] = {a + a,   0,      a * a,  1,       pow(a, a),         -a, a, exp(a), log(a),
                                 sqrt(a), sin(a), cos(a), tanh(a), 1 / (1 + exp(-a)), a};
      expect(fabs(got.values[p] - expected[i]) < 1e-12);
    }
    dtensor_tensor_free(y);
  }
  dtensor_tensor *sum = compute("sum", x, NULL), *pair = compute("cat", x, x), *wrong = NULL;
  int64_t width = 0;
  double total = 0;
  ok(dtensor_tensor_item(sum, &total));
  ok(dtensor_tensor_size(pair, 1, &width));
  expect(fabs(total - (0.3 * kPoints + 0.1 * kPoints * (kPoints - 1))) < 1e-12 && width == 2);
  refused(dtensor_tensor_compute("plus", 1, (const dtensor_tensor* const*)&x, &wrong),
          "expected an operator (add, sub");
  refused(dtensor_tensor_compute("add", 1, (const dtensor_tensor* const*)&x, &wrong),
          "expected 2 to 2 operands of add");
  if (ranks > 1) {
    const char* name = rank == 0 ? "sin" : "cos";
    refused(dtensor_tensor_compute(name, 1, (const dtensor_tensor* const*)&x, &wrong), "equal arguments on all ranks");
  }
  dtensor_tensor_free(sum);
  dtensor_tensor_free(pair);
  dtensor_tensor_free(x);
}

// The derivatives of sin(x^2) against their formulas.
static void check_formulas(dtensor_mesh* mesh) {
  static numbers first, second;
  double values[kPoints];
  dtensor_tensor* x = column(mesh, rank, ranks, values);
  first.count = second.count = 0;
  ok(dtensor_tensor_set_requires_grad(x, 1));
  dtensor_tensor *square = compute("mul", x, x), *y = compute("sin", square, NULL);
  dtensor_tensor *dy = derivative(y, x), *ddy = derivative(dy, x);
  append(&first, dy);
  append(&second, ddy);
  for (int p = 0; p < kPoints; ++p) {
    const double a = 0.3 + 0.2 * p;
    expect(fabs(first.values[p] - 2 * a * cos(a * a)) < 1e-12);
    expect(fabs(second.values[p] - (2 * cos(a * a) - 4 * a * a * sin(a * a))) < 1e-12);
  }
  dtensor_tensor* unused[2] = {x, x};
  const dtensor_tensor* of[2] = {x, ddy};
  ok(dtensor_autograd_grad(dy, dy, 2, of, unused, 1));
  expect(unused[0] != NULL && unused[1] == NULL);  // dy does not depend on ddy
  dtensor_tensor *fixed = column(mesh, rank, ranks, values), *none = NULL;
  refused(dtensor_autograd_grad(dy, dy, 1, (const dtensor_tensor* const*)&fixed, &none, 0), "that requires none");
  refused(dtensor_autograd_grad(dy, NULL, 1, of, &none, 0), "expected a gradient of sizes [9, 1]");
  dtensor_tensor* all[] = {x, square, y, dy, ddy, unused[0], fixed};
  for (int i = 0; i < 7; ++i) dtensor_tensor_free(all[i]);
}

// The residual u'' + u^2 of a differential equation, whose mean square trains a network.
static void train_residual(dtensor_mesh* mesh, int index, int count, const void* fully_shard, numbers* result) {
  const int64_t widths[4] = {1, 8, 8, 1};
  double values[kPoints];
  dtensor_module* net = NULL;
  dtensor_optimizer* sgd = NULL;
  dtensor_tensor *x = column(mesh, index, count, values), *u = NULL;
  ok(dtensor_tensor_set_requires_grad(x, 1));
  ok(dtensor_module_create(mesh, "Perceptron", 4, widths, "tanh", DTENSOR_FLOAT64, 5, &net));
  if (fully_shard != NULL) ok(dtensor_module_fully_shard(net));
  ok(dtensor_optimizer_sgd(net, 0.05, 0, 0, &sgd));
  for (int step = 0; step < 3; ++step) {
    ok(dtensor_optimizer_zero_grad(sgd));
    ok(dtensor_module_forward(net, x, &u));
    dtensor_tensor *du = derivative(u, x), *ddu = derivative(du, x), *square = compute("mul", u, u);
    dtensor_tensor* residual = compute("add", ddu, square);
    append(result, residual);
    backward_of_squares(residual);
    append_parameter_gradients(result, net);
    ok(dtensor_optimizer_step(sgd));
    dtensor_tensor* all[] = {u, du, ddu, square, residual};
    for (int i = 0; i < 5; ++i) dtensor_tensor_free(all[i]);
  }
  dtensor_tensor_free(x);
  dtensor_optimizer_free(sgd);
  dtensor_module_free(net);
}

void check_derivatives(dtensor_mesh* mesh) {
  check_operators(mesh);
  check_formulas(mesh);
  expect_as_one_process(mesh, train_residual, NULL);
  expect_as_one_process(mesh, train_residual, "fully sharded");
}

// Invalid arguments of the C interface.
#include <stddef.h>

#include "host.h"

void check_mesh_refusals(void) {
  dtensor_mesh* mesh = NULL;
  const int64_t wrong[1] = {ranks + 1};
  refused(dtensor_mesh_from_mpi(MPI_Comm_c2f(host), 1, wrong, "dp", &mesh), "the size of the communicator");
  refused(dtensor_mesh_from_mpi(MPI_Comm_c2f(MPI_COMM_NULL), 1, wrong, "dp", &mesh), "MPI_COMM_NULL");
  refused(dtensor_mesh_from_mpi(MPI_Comm_c2f(host), 0, wrong, "dp", &mesh), "at least 1 mesh dimension");
  expect(mesh == NULL);
}

// Invalid arguments on one rank are one error on all ranks, and the ranks continue.
void check_tensor_refusals(dtensor_mesh* mesh) {
  const int last = rank == ranks - 1;
  double values[24] = {0};
  int64_t sizes[2] = {2, 3}, negative[2] = {-2, 3};
  int64_t wrong[2] = {last ? 3 : 2, last ? 4 : 3};
  dtensor_tensor* made = NULL;
  const dtensor_host_array valid = {values, DTENSOR_FLOAT64, 2, sizes, NULL};
  dtensor_host_array array = valid;
  array.data = last ? NULL : values;
  refused(dtensor_tensor_from_host(mesh, &array, "[S(0)]", &made), "expected the address of 6 elements");
  array = valid;
  array.sizes = last ? negative : sizes;
  refused(dtensor_tensor_from_host(mesh, &array, "[S(0)]", &made), "expected a size >= 0 of dimension 0, got -2");
  array = valid;
  array.dtype = last ? (dtensor_dtype)99 : DTENSOR_FLOAT64;
  refused(dtensor_tensor_from_host(mesh, &array, "[S(0)]", &made), "expected a dtensor_dtype, got 99");
  array.dtype = last && ranks > 1 ? DTENSOR_FLOAT32 : DTENSOR_FLOAT64;
  if (ranks > 1) refused(dtensor_tensor_from_host(mesh, &array, "[S(0)]", &made), "2 dimensions of Float");
  array = valid;
  array.sizes = wrong;
  if (ranks > 1) refused(dtensor_tensor_from_host(mesh, &array, "[R]", &made), "the local sizes are not the chunks");
  refused(dtensor_tensor_from_host(mesh, &valid, "[X(0)]", &made), "not a placement");
  refused(dtensor_tensor_from_host(mesh, last ? NULL : &valid, "[R]", &made), "expected a host array, got a null");
  refused(dtensor_tensor_from_host(mesh, &valid, "[R, R]", &made), "one placement per mesh dimension");
  expect(made == NULL);
  refused(dtensor_set_bit_identical(mesh, 4), "expected a block size in [8, 512], got 4");
  if (ranks > 1) refused(dtensor_set_bit_identical(mesh, last ? 64 : 0), "equal arguments");
  host_communicates();

  ok(dtensor_tensor_from_host(mesh, &valid, "[R]", &made));
  array = valid;
  array.sizes = last ? negative : sizes;
  refused(dtensor_tensor_copy_full(made, &array), "got -2");
  refused(dtensor_tensor_size(made, 2, sizes), "expected a dimension in [0, 2), got 2");
  refused(dtensor_tensor_backward(made, NULL), "requires no gradient");
  refused(dtensor_tensor_item(made, values), "one element");
  refused(dtensor_tensor_item(NULL, values), "expected a tensor, got a null pointer");
  array.data = values;
  int64_t strides[2] = {3, 1};
  const int64_t huge = INT64_C(1) << 62;
  if (last) strides[0] = huge;
  array.sizes = sizes;
  array.strides = strides;
  dtensor_tensor* other = NULL;
  refused(dtensor_tensor_from_host(mesh, &array, "[S(0)]", &other), "to extend over at most 2^59 elements");
  if (ranks > 1) refused(dtensor_tensor_redistribute(made, last ? "[S(1)]" : "[S(0)]", &other), "equal arguments");
  if (ranks > 1) refused(dtensor_tensor_set_requires_grad(made, last), "equal arguments");
  expect(other == NULL);
  dtensor_tensor_free(made);
}

// The gradient has the sizes and the dtype of the tensor. The learning rate is the same on all ranks, to the last digit.
static void check_training_refusals(dtensor_mesh* mesh, dtensor_module* module) {
  int64_t inputs[2] = {2, 3}, narrow[2] = {2, 1}, more[3] = {2, 2, 2};
  double values[8] = {0};
  float halves[8] = {0};
  dtensor_host_array array = {values, DTENSOR_FLOAT64, 2, inputs, NULL};
  dtensor_tensor *x = NULL, *y = NULL, *gradient[3] = {NULL};
  dtensor_optimizer* optimizer = NULL;
  ok(dtensor_tensor_from_host(mesh, &array, "[S(0)]", &x));
  ok(dtensor_module_forward(module, x, &y));
  array.sizes = narrow;
  ok(dtensor_tensor_from_host(mesh, &array, "[S(0)]", &gradient[0]));
  array.sizes = more;
  array.ndim = 3;
  ok(dtensor_tensor_from_host(mesh, &array, "[S(1)]", &gradient[1]));
  const dtensor_host_array single = {halves, DTENSOR_FLOAT32, 2, more, NULL};
  ok(dtensor_tensor_from_host(mesh, &single, "[S(0)]", &gradient[2]));
  for (int i = 0; i < 3; ++i) {
    refused(dtensor_tensor_backward(y, gradient[i]), "expected a gradient of Double");
    dtensor_tensor_free(gradient[i]);
  }
  ok(dtensor_optimizer_sgd(module, 0.1, 0, 0, &optimizer));
  const double rate = rank == ranks - 1 ? 0.1 + 1e-15 : 0.1;
  if (ranks > 1) refused(dtensor_optimizer_set_lr(optimizer, rate), "equal arguments");
  refused(dtensor_optimizer_set_lr(optimizer, -1), "expected a finite learning rate >= 0, got -1");
  ok(dtensor_optimizer_set_lr(optimizer, 0.2));
  dtensor_optimizer_free(optimizer);
  dtensor_tensor_free(x);
  dtensor_tensor_free(y);
}

void check_module_refusals(dtensor_mesh* mesh) {
  const int last = rank == ranks - 1;
  int64_t widths[2] = {3, 2}, zero[2] = {3, 0}, size[2] = {2, 5};
  double values[10] = {0};
  float halves[10] = {0};
  dtensor_module* module = NULL;
  dtensor_optimizer* optimizer = NULL;
  dtensor_tensor *x = NULL, *y = NULL;
  refused(dtensor_module_create(mesh, "Conv", 2, widths, NULL, DTENSOR_FLOAT64, 1, &module), "got 'Conv'");
  refused(dtensor_module_create(mesh, "Linear", 2, last ? zero : widths, NULL, DTENSOR_FLOAT64, 1, &module), "[3, 0]");
  refused(dtensor_module_create(mesh, "Perceptron", 2, widths, "sign", DTENSOR_FLOAT64, 1, &module), "got 'sign'");
  if (ranks > 1) {
    refused(dtensor_module_create(mesh, "Linear", 2, widths, NULL, DTENSOR_FLOAT64, last ? 2 : 1, &module),
            "expected equal arguments on all ranks");
  }
  expect(module == NULL);
  ok(dtensor_module_create(mesh, "Linear", 2, widths, NULL, DTENSOR_FLOAT64, 1, &module));
  const dtensor_host_array five = {values, DTENSOR_FLOAT64, 2, size, NULL};
  const dtensor_host_array single = {halves, DTENSOR_FLOAT32, 2, size, NULL};
  ok(dtensor_tensor_from_host(mesh, &five, "[S(0)]", &x));
  refused(dtensor_module_forward(module, x, &y), "cannot be multiplied");
  dtensor_tensor_free(x);
  ok(dtensor_tensor_from_host(mesh, &single, "[S(0)]", &x));
  refused(dtensor_module_forward(module, x, &y), "the dtype of the parameters");
  refused(dtensor_optimizer_sgd(module, last ? -1 : 0.1, 0, 0, &optimizer), "lr");
  expect(y == NULL && optimizer == NULL);
  check_training_refusals(mesh, module);
  dtensor_tensor_free(x);
  dtensor_module_free(module);
}

// Ranks that make different calls get an error each, and may start again on the same communicator.
void check_different_calls(void) {
  if (ranks == 1) return;
  MPI_Comm own = MPI_COMM_NULL;
  MPI_Comm_dup(host, &own);
  double values[4] = {1, 2, 3, 4}, total[16] = {0};
  const int64_t shape[1] = {ranks}, sizes[1] = {4}, full[1] = {4 * ranks};
  const dtensor_host_array local = {values, DTENSOR_FLOAT64, 1, sizes, NULL};
  const dtensor_host_array all = {total, DTENSOR_FLOAT64, 1, full, NULL};
  dtensor_mesh* mesh = NULL;
  dtensor_tensor *x = NULL, *y = NULL;
  ok(dtensor_mesh_from_mpi(MPI_Comm_c2f(own), 1, shape, NULL, &mesh));
  ok(dtensor_tensor_from_host(mesh, &local, "[S(0)]", &x));
  const dtensor_status status =
      rank == 0 ? dtensor_tensor_redistribute(x, "[R]", &y) : dtensor_tensor_copy_full(x, &all);
  expect(status == DTENSOR_COMMUNICATION && y == NULL);
  dtensor_tensor_free(x);
  dtensor_mesh_free(mesh);
  MPI_Barrier(own);
  ok(dtensor_mesh_from_mpi(MPI_Comm_c2f(own), 1, shape, NULL, &mesh));
  ok(dtensor_tensor_from_host(mesh, &local, "[S(0)]", &x));
  ok(dtensor_tensor_copy_full(x, &all));
  expect(total[4 * ranks - 1] == 4);
  dtensor_tensor_free(x);
  dtensor_mesh_free(mesh);
  MPI_Comm_free(&own);
}

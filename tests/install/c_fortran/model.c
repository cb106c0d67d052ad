#include <dtensor/c/dtensor.h>
#include <math.h>
#include <mpi.h>
#include <stdio.h>

static void check(dtensor_status status) {
  if (status == DTENSOR_OK) return;
  fprintf(stderr, "%s\n", dtensor_last_error());
  MPI_Abort(MPI_COMM_WORLD, 1);
}

int main(int argc, char** argv) {
  enum { rows = 50, steps = 200 };
  static double field[rows][3], goal[rows][2]; /* this rank's rows */
  int ranks, rank;
  double value = 0, first = 0;
  MPI_Init(&argc, &argv);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < 3; ++j) field[i][j] = sin(1 + i + rows * rank + 2 * j);
    for (int j = 0; j < 2; ++j) goal[i][j] = field[i][j] * field[i][j + 1];
  }

  const int64_t shape[1] = {ranks}, widths[3] = {3, 16, 2}, inputs[2] = {rows, 3}, outputs[2] = {rows, 2};
  const dtensor_host_array x_array = {field, DTENSOR_FLOAT64, 2, inputs, NULL}; /* not copied */
  const dtensor_host_array y_array = {goal, DTENSOR_FLOAT64, 2, outputs, NULL};
  dtensor_mesh* mesh;
  dtensor_module* model;
  dtensor_optimizer* adam;
  dtensor_tensor *x, *y, *prediction, *loss;
  check(dtensor_mesh_from_mpi(MPI_Comm_c2f(MPI_COMM_WORLD), 1, shape, "dp", &mesh));
  check(dtensor_module_create(mesh, "Perceptron", 3, widths, "tanh", DTENSOR_FLOAT64, 7, &model));
  check(dtensor_optimizer_adamw(model, 1e-2, 0.9, 0.999, 1e-8, 0.01, &adam));
  check(dtensor_tensor_from_host(mesh, &x_array, "[S(0)]", &x));
  check(dtensor_tensor_from_host(mesh, &y_array, "[S(0)]", &y));
  for (int step = 0; step < steps; ++step) {
    check(dtensor_optimizer_zero_grad(adam));
    check(dtensor_module_forward(model, x, &prediction));
    check(dtensor_mse_loss(prediction, y, &loss));
    check(dtensor_tensor_item(loss, &value));
    check(dtensor_tensor_backward(loss, NULL));
    check(dtensor_optimizer_step(adam));
    dtensor_tensor_free(prediction);
    dtensor_tensor_free(loss);
    if (step == 0) first = value;
  }
  if (rank == 0) printf("C on %d ranks: loss %.3f, then %.3f\n", ranks, first, value);
  dtensor_tensor_free(x);
  dtensor_tensor_free(y);
  dtensor_optimizer_free(adam);
  dtensor_module_free(model);
  dtensor_mesh_free(mesh);
  MPI_Finalize();
  return value < 0.1 * first ? 0 : 1;
}

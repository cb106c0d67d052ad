// A C program that owns MPI and uses the library through its C interface.  mpirun -n N c_host FOLDER
// FOLDER: for a checkpoint. Prints a line on failure and returns 1.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run.h"

enum { kRows = 11, kInputs = 3, kOutputs = 2, kSteps = 5 };

MPI_Comm host;
int rank, ranks;

void fail(int line, const char* what) {
  fprintf(stderr, "c_host: rank %d, line %d: %s; last error: %s\n", rank, line, what, dtensor_last_error());
  exit(1);  // without MPI_Finalize: mpirun ends the other ranks
}

static int close_to(double a, double b) { return fabs(a - b) <= 1e-12 * (1 + fabs(b)); }

void host_communicates(void) {
  int own = rank + 1, sum = 0;
  MPI_Allreduce(&own, &sum, 1, MPI_INT, MPI_SUM, host);
  expect(sum == ranks * (ranks + 1) / 2);
}

void expect_error(int line, dtensor_status status, const char* part) {
  char own[4096] = {0}, first[4096] = {0};
  snprintf(own, sizeof own, "%d %s", (int)status, dtensor_last_error());
  if (status == DTENSOR_OK || strstr(own, part) == NULL) fail(line, part);
  memcpy(first, own, sizeof own);
  MPI_Bcast(first, sizeof first, MPI_CHAR, 0, host);
  if (strcmp(own, first) != 0) fail(line, "the error differs from that of rank 0");
}

static double input_at(int row, int column) { return sin(1.0 + 3.0 * row + column); }
static double target_at(int row, int column) { return 0.5 * cos(row - 2.0 * column); }

// A field of this rank's rows, column-major as in Fortran with `gap` unused elements behind each column.
typedef struct field {
  double* data;
  int64_t sizes[2], strides[2];
  dtensor_host_array array;
} field;

static void make_field(field* f, int rows, int columns, int gap) {
  f->data = calloc((size_t)((rows + gap) * columns + 1), sizeof(double));
  f->sizes[0] = rows;
  f->sizes[1] = columns;
  f->strides[0] = 1;
  f->strides[1] = rows + gap > 0 ? rows + gap : 1;
  f->array.data = f->data;
  f->array.dtype = DTENSOR_FLOAT64;
  f->array.ndim = 2;
  f->array.sizes = f->sizes;
  f->array.strides = f->strides;
}

static double* at(const field* f, int row, int column) { return f->data + row + column * f->strides[1]; }

// A training run: the loss of each step, and the parameters at its end.
typedef struct result {
  double losses[kSteps], gradient[kRows * kInputs], weight[8 * kInputs];
} result;

typedef struct setup {
  dtensor_mesh* mesh;
  dtensor_module* module;
  dtensor_optimizer* optimizer;
  dtensor_tensor *x, *y;
  field inputs, targets;
} setup;

static void fill(field* f, int first, double (*value)(int, int)) {
  for (int i = 0; i < f->sizes[0]; ++i) {
    for (int j = 0; j < f->sizes[1]; ++j) *at(f, i, j) = value(first + i, j);
  }
}

static void create_model(setup* s, int fully_shard) {
  const int64_t widths[4] = {kInputs, 8, 5, kOutputs};
  ok(dtensor_module_create(s->mesh, "Perceptron", 4, widths, "tanh", DTENSOR_FLOAT64, 7, &s->module));
  if (fully_shard) ok(dtensor_module_fully_shard(s->module));
  ok(dtensor_optimizer_adamw(s->module, 1e-2, 0.9, 0.999, 1e-8, 0.01, &s->optimizer));
}

static void begin(setup* s, dtensor_mesh* mesh, int index, int count, int fully_shard) {
  int first = 0, last = 0;
  chunk_of(kRows, index, count, &first, &last);
  s->mesh = mesh;
  create_model(s, fully_shard);
  make_field(&s->inputs, last - first, kInputs, 2);
  make_field(&s->targets, last - first, kOutputs, 0);
  fill(&s->inputs, first, input_at);
  fill(&s->targets, first, target_at);
  ok(dtensor_tensor_from_host(mesh, &s->inputs.array, "[S(0)]", &s->x));
  ok(dtensor_tensor_from_host(mesh, &s->targets.array, "S(0)", &s->y));
  ok(dtensor_tensor_set_requires_grad(s->x, 1));
}

static void end(setup* s) {
  dtensor_tensor_free(s->x);
  dtensor_tensor_free(s->y);
  dtensor_optimizer_free(s->optimizer);
  dtensor_module_free(s->module);
  free(s->inputs.data);
  free(s->targets.data);
}

static double loss_of(const setup* s, dtensor_tensor** loss) {
  dtensor_tensor* prediction = NULL;
  double value = 0;
  ok(dtensor_module_forward(s->module, s->x, &prediction));
  host_communicates();
  ok(dtensor_mse_loss(prediction, s->y, loss));
  ok(dtensor_tensor_item(*loss, &value));
  dtensor_tensor_free(prediction);
  return value;
}

static double train_step(const setup* s) {
  dtensor_tensor* loss = NULL;
  ok(dtensor_optimizer_zero_grad(s->optimizer));
  ok(dtensor_tensor_zero_grad(s->x));
  const double value = loss_of(s, &loss);
  ok(dtensor_tensor_backward(loss, NULL));
  host_communicates();
  ok(dtensor_optimizer_step(s->optimizer));
  dtensor_tensor_free(loss);
  return value;
}

static void copy_full(const dtensor_tensor* tensor, int64_t rows, int64_t columns, double* to) {
  const int64_t sizes[2] = {rows, columns};
  const dtensor_host_array array = {to, DTENSOR_FLOAT64, 2, sizes, NULL};
  ok(dtensor_tensor_copy_full(tensor, &array));
}

static void train(const setup* s, result* r) {
  dtensor_tensor *gradient = NULL, *weight = NULL;
  for (int step = 0; step < kSteps; ++step) r->losses[step] = train_step(s);
  ok(dtensor_tensor_grad(s->x, &gradient));
  expect(gradient != NULL);
  copy_full(gradient, kRows, kInputs, r->gradient);
  ok(dtensor_module_parameter(s->module, 0, &weight));
  copy_full(weight, 8, kInputs, r->weight);
  dtensor_tensor_free(gradient);
  dtensor_tensor_free(weight);
}

static void expect_equal(const result* a, const result* b) {
  for (int i = 0; i < kSteps; ++i) expect(close_to(a->losses[i], b->losses[i]));
  for (int i = 0; i < kRows * kInputs; ++i) expect(close_to(a->gradient[i], b->gradient[i]));
  for (int i = 0; i < 8 * kInputs; ++i) expect(close_to(a->weight[i], b->weight[i]));
  expect(a->losses[kSteps - 1] < a->losses[0]);
}

// The training run of all ranks, replicated and fully sharded, equals that of one process with all rows, with blocks to
// the last bit.
static void check_training(dtensor_mesh* mesh, int block) {
  dtensor_mesh* alone = NULL;
  ok(dtensor_set_bit_identical(mesh, block));
  ok(dtensor_mesh_of_process(&alone));
  setup s;
  result expected, got;
  begin(&s, alone, 0, 1, 0);
  train(&s, &expected);
  end(&s);
  for (int fully_shard = 0; fully_shard < 2; ++fully_shard) {
    begin(&s, mesh, rank, ranks, fully_shard);
    train(&s, &got);
    end(&s);
    expect_equal(&got, &expected);
    if (block > 0) expect(memcmp(&got, &expected, sizeof got) == 0);
  }
  ok(dtensor_set_bit_identical(mesh, 0));
  dtensor_mesh_free(alone);
}

// The tensor is the host's memory: no copy, writes are visible in both directions.
static void check_host_memory(dtensor_mesh* mesh) {
  setup s;
  dtensor_host_array local;
  dtensor_tensor *prediction = NULL, *loss = NULL, *own = NULL;
  field output;
  begin(&s, mesh, rank, ranks, 0);
  ok(dtensor_tensor_local(s.x, &local));
  expect(local.data == s.inputs.data && local.ndim == 2 && local.dtype == DTENSOR_FLOAT64);
  expect(local.sizes[0] == s.inputs.sizes[0] && local.sizes[1] == kInputs);
  expect(local.sizes[0] < 2 || (local.strides[0] == 1 && local.strides[1] == s.inputs.strides[1]));
  const double before = loss_of(&s, &loss);
  dtensor_tensor_free(loss);
  for (int i = 0; i < local.sizes[0]; ++i) *at(&s.inputs, i, 1) += 1;
  ok(dtensor_tensor_increment_version(s.x));
  expect(fabs(loss_of(&s, &loss) - before) > 1e-6);
  dtensor_tensor_free(loss);

  make_field(&output, (int)s.inputs.sizes[0], kOutputs, 3);
  ok(dtensor_module_forward_no_grad(s.module, s.x, &prediction));
  ok(dtensor_tensor_from_host(mesh, &output.array, "[S(0)]", &own));
  ok(dtensor_tensor_copy(own, prediction));
  ok(dtensor_tensor_local(prediction, &local));
  for (int i = 0; i < local.sizes[0]; ++i) {
    for (int j = 0; j < kOutputs; ++j) {
      const double* value = local.data;
      expect(*at(&output, i, j) == value[i * local.strides[0] + j * local.strides[1]]);
    }
  }
  dtensor_tensor_free(own);
  dtensor_tensor_free(prediction);
  free(output.data);
  end(&s);
}

// Replicated and ragged parts, redistribution, and the properties of a tensor.
static void check_tensors(dtensor_mesh* mesh) {
  char ragged[128] = "[RS(1,";
  int64_t sizes[2] = {2, rank + 1}, size = 0;
  double values[16] = {0}, full[64] = {0};
  const char* text = NULL;
  int ndim = 0;
  dtensor_dtype dtype;
  dtensor_tensor *tensor = NULL, *replicated = NULL;
  for (int r = 0; r < ranks; ++r) snprintf(ragged + strlen(ragged), 32, " %d", r + 1);
  strcat(ragged, ")]");
  for (int i = 0; i < 2 * (rank + 1); ++i) values[i] = 100 * rank + i;
  const dtensor_host_array local = {values, DTENSOR_FLOAT64, 2, sizes, NULL};
  ok(dtensor_tensor_from_host(mesh, &local, ragged, &tensor));
  ok(dtensor_tensor_size(tensor, 1, &size));
  ok(dtensor_tensor_ndim(tensor, &ndim));
  ok(dtensor_tensor_dtype(tensor, &dtype));
  expect(size == ranks * (ranks + 1) / 2 && ndim == 2 && dtype == DTENSOR_FLOAT64);
  ok(dtensor_tensor_redistribute(tensor, "[R]", &replicated));
  ok(dtensor_tensor_placements(replicated, &text));
  expect(strcmp(text, "[R]") == 0);
  copy_full(tensor, 2, size, full);
  expect(full[size - 1] == 100 * (ranks - 1) + ranks - 1 && full[size] == 1);
  dtensor_tensor_free(tensor);
  dtensor_tensor_free(replicated);
}

// A tensor without dimensions, and one of integers.
static void check_other_tensors(dtensor_mesh* mesh) {
  double number = 2.5, got = 0;
  int64_t labels[3] = {rank, rank + 1, rank + 2}, total[12] = {0};
  const int64_t sizes[1] = {3}, full[1] = {3 * ranks};
  const dtensor_host_array scalar = {&number, DTENSOR_FLOAT64, 0, NULL, NULL};
  const dtensor_host_array local = {labels, DTENSOR_INT64, 1, sizes, NULL}, all = {total, DTENSOR_INT64, 1, full, NULL};
  dtensor_tensor* tensor = NULL;
  ok(dtensor_tensor_from_host(mesh, &scalar, "[R]", &tensor));
  ok(dtensor_tensor_item(tensor, &got));
  expect(got == 2.5);
  dtensor_tensor_free(tensor);
  ok(dtensor_tensor_from_host(mesh, &local, "[S(0)]", &tensor));
  refused(dtensor_tensor_set_requires_grad(tensor, 1), "floating point");
  ok(dtensor_tensor_copy_full(tensor, &all));
  for (int i = 0; i < 3 * ranks; ++i) expect(total[i] == i / 3 + i % 3);
  dtensor_tensor_free(tensor);
}

// Integers of 1 and 2 bytes, in every second element of the program's array.
#define CHECK_NARROW(type, dtype_name)                                                                       \
  do {                                                                                                       \
    type own[6], total[3 * 16];                                                                              \
    for (int i = 0; i < 6; ++i) own[i] = (type)(100 + 50 * rank + i);                                        \
    const int64_t sizes[1] = {3}, gaps[1] = {2}, full[1] = {3 * ranks};                                      \
    const dtensor_host_array local = {own, dtype_name, 1, sizes, gaps}, all = {total, dtype_name, 1, full, NULL}; \
    dtensor_tensor* tensor = NULL;                                                                           \
    dtensor_dtype dtype = DTENSOR_FLOAT32;                                                                   \
    dtensor_host_array shown;                                                                                \
    ok(dtensor_tensor_from_host(mesh, &local, "[S(0)]", &tensor));                                           \
    ok(dtensor_tensor_dtype(tensor, &dtype));                                                                \
    ok(dtensor_tensor_local(tensor, &shown));                                                                \
    expect(dtype == dtype_name && shown.data == (void*)own);                                                 \
    ok(dtensor_tensor_copy_full(tensor, &all));                                                              \
    for (int i = 0; i < 3 * ranks; ++i) expect(total[i] == (type)(100 + 50 * (i / 3) + 2 * (i % 3)));         \
    dtensor_tensor_free(tensor);                                                                             \
  } while (0)

static void check_narrow_integers(dtensor_mesh* mesh) {
  CHECK_NARROW(int8_t, DTENSOR_INT8);
  CHECK_NARROW(int16_t, DTENSOR_INT16);
  CHECK_NARROW(uint8_t, DTENSOR_UINT8);
}

static void check_checkpoint(dtensor_mesh* mesh, const char* folder) {
  setup s, t;
  int64_t step = 0;
  char path[4096];
  snprintf(path, sizeof path, "%s/checkpoint_%d", folder, ranks);
  begin(&s, mesh, rank, ranks, 1);
  for (int i = 0; i < 3; ++i) train_step(&s);
  ok(dtensor_checkpoint_save(path, s.module, s.optimizer, 3));
  begin(&t, mesh, rank, ranks, 0);  // another layout
  ok(dtensor_checkpoint_load(path, t.module, t.optimizer, &step));
  expect(step == 3);
  for (int i = 0; i < 3; ++i) expect(close_to(train_step(&t), train_step(&s)));
  refused(dtensor_checkpoint_load("no/such/folder", t.module, t.optimizer, &step), "no/such/folder");
  refused(dtensor_checkpoint_save(NULL, s.module, NULL, 3), "expected a path, got a null pointer");
  if (ranks > 1) refused(dtensor_checkpoint_save(rank == 0 ? path : "other", s.module, NULL, 3), "equal arguments");
  end(&s);
  end(&t);
}

static void check_layers(dtensor_mesh* mesh) {
  const int64_t widths[1] = {4}, sizes[2] = {3, 4};
  double values[12], full[12 * 4];
  const char* name = NULL;
  int count = 0;
  for (int i = 0; i < 12; ++i) values[i] = input_at(i, rank);
  const dtensor_host_array local = {values, DTENSOR_FLOAT64, 2, sizes, NULL};
  dtensor_module* norm = NULL;
  dtensor_tensor *x = NULL, *y = NULL;
  ok(dtensor_module_create(mesh, "LayerNorm", 1, widths, "", DTENSOR_FLOAT64, 1, &norm));
  ok(dtensor_module_parameter_count(norm, &count));
  ok(dtensor_module_parameter_name(norm, 1, &name));
  expect(count == 2 && strcmp(name, "bias") == 0);
  ok(dtensor_tensor_from_host(mesh, &local, "[S(0)]", &x));
  ok(dtensor_module_forward_no_grad(norm, x, &y));
  copy_full(y, 3 * ranks, 4, full);
  const double* row = full + 4 * (3 * rank);
  expect(fabs(row[0] + row[1] + row[2] + row[3]) < 1e-10);
  dtensor_tensor_free(x);
  dtensor_tensor_free(y);
  dtensor_module_free(norm);
}

// A mesh with names, and null handles.
static void check_meshes(void) {
  dtensor_mesh* mesh = NULL;
  ok(dtensor_mesh_from_mpi(MPI_Comm_c2f(host), 2, (const int64_t[2]){ranks, 1}, "dp,tp", &mesh));
  dtensor_mesh_free(mesh);
  dtensor_mesh_free(NULL);
}

int main(int argc, char** argv) {
  int provided = 0, size = 0, index = -1;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm_dup(MPI_COMM_WORLD, &host);
  MPI_Comm_rank(host, &rank);
  MPI_Comm_size(host, &ranks);
  check_mesh_refusals();
  check_meshes();
  dtensor_mesh* mesh = NULL;
  const int64_t shape[1] = {ranks};
  ok(dtensor_mesh_from_mpi(MPI_Comm_c2f(host), 1, shape, "dp", &mesh));
  ok(dtensor_mesh_size(mesh, &size));
  ok(dtensor_mesh_rank(mesh, &index));
  expect(size == ranks && index == rank);
  check_tensors(mesh);
  check_other_tensors(mesh);
  check_narrow_integers(mesh);
  check_host_memory(mesh);
  check_training(mesh, 0);
  check_training(mesh, 8);
  check_layers(mesh);
  check_losses(mesh);
  check_clipping(mesh);
  check_learning_rate(mesh);
  check_optimizer_options(mesh, argc > 1 ? argv[1] : ".");
  check_convolutions(mesh);
  check_derivatives(mesh);
  check_graphs(mesh);
  check_tensor_refusals(mesh);
  check_module_refusals(mesh);
  check_checkpoint(mesh, argc > 1 ? argv[1] : ".");
  check_different_calls();
  // Handles may be freed after the end of MPI.
  setup late;
  begin(&late, mesh, rank, ranks, 0);
  MPI_Comm_free(&host);
  MPI_Finalize();
  dtensor_tensor* prediction = NULL;
  const dtensor_status expected = ranks == 1 ? DTENSOR_OK : DTENSOR_COMMUNICATION;
  expect(dtensor_tensor_redistribute(late.x, "[R]", &prediction) == expected);
  dtensor_tensor_free(prediction);
  end(&late);
  dtensor_mesh_free(mesh);
  return 0;
}

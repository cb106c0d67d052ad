// The table of calls.
#include "calls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char* folder_of_checkpoint(void) {
  static char path[4096];
  const char* folder = getenv("DTENSOR_TEST_FOLDER");
  snprintf(path, sizeof path, "%s/calls_checkpoint_%d", folder == NULL ? "/tmp" : folder, ranks);
  return path;
}

#ifdef WITH_TORCHSCRIPT
static const char* path_of_script(void) { return getenv("DTENSOR_TEST_SCRIPT"); }
#endif

static void make_prediction(objects* o) {
  dtensor_tensor_free(o->y);
  dtensor_tensor_free(o->loss);
  o->y = o->loss = NULL;
  ok(dtensor_module_forward(o->handle[kModule], o->handle[kTensor], &o->y));
  ok(dtensor_mse_loss(o->y, o->target, &o->loss));
}

static void make_module(objects* o) {
  const int64_t widths[2] = {3, 2};
  dtensor_module* module = NULL;
  dtensor_module_free(o->handle[kModule]);
  ok(dtensor_module_create(o->handle[kMesh], "Linear", 2, widths, NULL, DTENSOR_FLOAT64, 1, &module));
  o->handle[kModule] = module;
}

// Each rank sends two of its four nodes to the next one, and has three edges.
static const int64_t kSource[3] = {0, 4, 5}, kTarget[3] = {0, 1, 1};

static dtensor_status create_graph(const dtensor_mesh* mesh, dtensor_graph** graph) {
  static const int64_t rows[2] = {0, 1};
  int64_t counts[16] = {0};
  counts[(rank + 1) % ranks] = 2;
  return dtensor_graph_create(mesh, 4, counts, rows, 3, kSource, kTarget, graph);
}

void make_objects(objects* o, MPI_Comm comm) {
  const int64_t shape[1] = {ranks}, inputs[2] = {4, 3}, outputs[2] = {4, 2};
  memset(o, 0, sizeof *o);
  o->comm = comm;
  for (int i = 0; i < 12; ++i) o->values[i] = i + 1;
  for (int i = 0; i < 8; ++i) o->goals[i] = 0.1 * i;
  const dtensor_host_array x = {o->values, DTENSOR_FLOAT64, 2, inputs, NULL};
  const dtensor_host_array y = {o->goals, DTENSOR_FLOAT64, 2, outputs, NULL};
  ok(dtensor_mesh_from_mpi(MPI_Comm_c2f(comm), 1, shape, "dp", (dtensor_mesh**)&o->handle[kMesh]));
  ok(dtensor_tensor_from_host(o->handle[kMesh], &x, "[S(0)]", (dtensor_tensor**)&o->handle[kTensor]));
  ok(dtensor_tensor_from_host(o->handle[kMesh], &y, "[S(0)]", &o->target));
  const dtensor_host_array classes = {o->labels, DTENSOR_INT64, 1, inputs, NULL};
  ok(dtensor_tensor_from_host(o->handle[kMesh], &classes, "[S(0)]", &o->classes));
  make_module(o);
  ok(dtensor_optimizer_sgd(o->handle[kModule], 0.1, 0, 0, (dtensor_optimizer**)&o->handle[kOptimizer]));
  make_prediction(o);
#ifdef WITH_TORCHSCRIPT
  ok(dtensor_module_load_torchscript(o->handle[kMesh], path_of_script(), &o->script));
#endif
  ok(create_graph(o->handle[kMesh], (dtensor_graph**)&o->handle[kGraph]));
  ok(dtensor_graph_exchange(o->handle[kGraph], o->handle[kTensor], &o->stored));
  ok(dtensor_graph_gather_source(o->handle[kGraph], o->stored, &o->edges));
}

void free_objects(objects* o) {
  dtensor_tensor_free(o->y);
  dtensor_tensor_free(o->loss);
  dtensor_tensor_free(o->target);
  dtensor_tensor_free(o->classes);
  dtensor_tensor_free(o->stored);
  dtensor_tensor_free(o->edges);
  dtensor_graph_free(o->handle[kGraph]);
  dtensor_module_free(o->script);
  dtensor_optimizer_free(o->handle[kOptimizer]);
  dtensor_module_free(o->handle[kModule]);
  dtensor_tensor_free(o->handle[kTensor]);
  dtensor_mesh_free(o->handle[kMesh]);
}

#define CALL(function) static dtensor_status call_##function(objects* o, void* const* h)
// A call that returns a handle of `type`, which is freed.
#define CALL_THAT_MAKES(function, type, ...)           \
  CALL(function) {                                     \
    dtensor_##type* made = NULL;                       \
    const dtensor_status status = dtensor_##function(__VA_ARGS__, &made); \
    dtensor_##type##_free(made);                       \
    (void)o, (void)h;                                  \
    return status;                                     \
  }
// A call that writes a value of `type`.
#define CALL_THAT_WRITES(function, type, ...)   \
  CALL(function) {                              \
    type value;                                 \
    (void)o;                                    \
    return dtensor_##function(__VA_ARGS__, &value); \
  }
#define CALL_THAT_FREES(type)                        \
  CALL(type##_free) {                                \
    dtensor_##type##_free(h[0]);                     \
    return (void)o, DTENSOR_OK;                      \
  }

static const int64_t kWidths[2] = {3, 2}, kSizes[2] = {4, 3};

CALL(last_error) { return (void)o, (void)h, dtensor_last_error() == NULL ? DTENSOR_INTERNAL : DTENSOR_OK; }
CALL(set_timeout) { return (void)o, (void)h, dtensor_set_timeout(60); }
CALL(mesh_of_process) {
  dtensor_mesh* made = NULL;
  const dtensor_status status = dtensor_mesh_of_process(&made);
  dtensor_mesh_free(made);
  return (void)o, (void)h, status;
}
CALL(mesh_from_mpi) {
  const int64_t shape[1] = {ranks};
  dtensor_mesh* made = NULL;
  const dtensor_status status = dtensor_mesh_from_mpi(MPI_Comm_c2f(o->comm), 1, shape, NULL, &made);
  dtensor_mesh_free(made);
  return (void)h, status;
}
// A valid call fails where the library has no CUDA.
CALL(mesh_on_gpu) {
  dtensor_mesh* made = NULL;
  const dtensor_status status = dtensor_mesh_on_gpu(h[0], -1, &made);
  dtensor_mesh_free(made);
  const int refused = h[0] == o->handle[kMesh] && strstr(dtensor_last_error(), "nccl_communicator: ") != NULL;
  return status == DTENSOR_INVALID_ARGUMENT && refused ? DTENSOR_OK : status;
}
CALL(mesh_on_device) {
  dtensor_mesh* made = NULL;
  const dtensor_status status = dtensor_mesh_on_device(h[0], "cpu", &made);
  dtensor_mesh_free(made);
  return (void)o, status;
}
CALL_THAT_WRITES(mesh_size, int, h[0])
CALL_THAT_WRITES(mesh_rank, int, h[0])
CALL_THAT_FREES(mesh)
CALL(tensor_from_host) {
  dtensor_tensor* made = NULL;
  const dtensor_host_array x = {o->values, DTENSOR_FLOAT64, 2, kSizes, NULL};
  const dtensor_status status = dtensor_tensor_from_host(h[0], &x, "[S(0)]", &made);
  dtensor_tensor_free(made);
  return status;
}
CALL(tensor_increment_version) { return (void)o, dtensor_tensor_increment_version(h[0]); }
CALL_THAT_FREES(tensor)
CALL_THAT_WRITES(tensor_ndim, int, h[0])
CALL_THAT_WRITES(tensor_size, int64_t, h[0], 1)
CALL_THAT_WRITES(tensor_dtype, dtensor_dtype, h[0])
CALL_THAT_WRITES(tensor_placements, const char*, h[0])
CALL(set_bit_identical) {
  const dtensor_status status = dtensor_set_bit_identical(h[0], 64);
  return status == DTENSOR_OK ? dtensor_set_bit_identical(o->handle[kMesh], 0) : status;
}
CALL(tensor_content_hash) {
  char digits[65];
  return (void)o, dtensor_tensor_content_hash(h[0], digits);
}
CALL_THAT_WRITES(tensor_local, dtensor_host_array, h[0])
CALL_THAT_MAKES(tensor_redistribute, tensor, h[0], "[R]")
CALL_THAT_MAKES(tensor_to_mesh, tensor, h[0], h[1])
CALL(tensor_copy_full) {
  double values[12 * 16];
  const int64_t sizes[2] = {4 * ranks, 3};
  const dtensor_host_array all = {values, DTENSOR_FLOAT64, 2, sizes, NULL};
  return (void)o, dtensor_tensor_copy_full(h[0], &all);
}
CALL(tensor_copy) { return (void)o, dtensor_tensor_copy(h[0], h[1]); }
CALL(tensor_item) {
  double value = 0;
  void* loss = h[0] == o->handle[kTensor] ? o->loss : h[0];  // the valid one has one element
  return dtensor_tensor_item(loss, &value);
}
CALL(tensor_compute) {
  dtensor_tensor* made = NULL;
  const dtensor_tensor* operands[2] = {h[0], h[1]};
  const dtensor_status status = dtensor_tensor_compute("add", 2, operands, &made);
  dtensor_tensor_free(made);
  return (void)o, status;
}
CALL(tensor_set_requires_grad) { return (void)o, dtensor_tensor_set_requires_grad(h[0], 0); }
CALL_THAT_MAKES(mse_loss, tensor, h[0], h[1])
CALL_THAT_MAKES(l1_loss, tensor, h[0], h[1])
CALL(cross_entropy_loss) {
  dtensor_tensor* made = NULL;
  void* scores = h[0] == o->handle[kTensor] ? o->y : h[0];
  void* classes = h[1] == o->handle[kTensor] ? o->classes : h[1];
  const dtensor_status status = dtensor_cross_entropy_loss(scores, classes, &made);
  dtensor_tensor_free(made);
  return status;
}
CALL(tensor_backward) {
  void* output = h[0] == o->handle[kTensor] ? o->y : h[0];
  void* gradient = h[1] == o->handle[kTensor] ? o->target : h[1];
  return dtensor_tensor_backward(output, gradient);
}
CALL(autograd_grad) {
  dtensor_tensor *made = NULL, *weight = NULL;
  ok(dtensor_module_parameter(o->handle[kModule], 0, &weight));
  void* output = h[0] == o->handle[kTensor] ? o->y : h[0];
  void* gradient = h[1] == o->handle[kTensor] ? o->target : h[1];
  const dtensor_tensor* tensors[1] = {h[2] == o->handle[kTensor] ? weight : h[2]};
  const dtensor_status status = dtensor_autograd_grad(output, gradient, 1, tensors, &made, 1);
  dtensor_tensor_free(made);
  dtensor_tensor_free(weight);
  return status;
}
CALL_THAT_MAKES(tensor_grad, tensor, h[0])
CALL(tensor_zero_grad) { return (void)o, dtensor_tensor_zero_grad(h[0]); }
CALL_THAT_MAKES(module_create, module, h[0], "Linear", 2, kWidths, NULL, DTENSOR_FLOAT64, 1)
CALL_THAT_FREES(module)
CALL_THAT_MAKES(module_forward, tensor, h[0], h[1])
CALL_THAT_MAKES(module_forward_no_grad, tensor, h[0], h[1])
CALL(module_forward_list) {
  dtensor_tensor* made = NULL;
  const dtensor_tensor* inputs[1] = {h[1]};
  const dtensor_status status = dtensor_module_forward_list(h[0], 1, inputs, 1, &made, 1);
  dtensor_tensor_free(made);
  return (void)o, status;
}
CALL(module_train) { return (void)o, dtensor_module_train(h[0], 1); }
CALL(module_clip_grad_norm) { return (void)o, dtensor_module_clip_grad_norm(h[0], 1.0, NULL); }
CALL_THAT_WRITES(module_parameter_count, int, h[0])
CALL_THAT_WRITES(module_parameter_name, const char*, h[0], 0)
CALL_THAT_MAKES(module_parameter, tensor, h[0], 0)
CALL(module_fully_shard) { return (void)o, dtensor_module_fully_shard(h[0]); }
CALL_THAT_MAKES(optimizer_adamw, optimizer, h[0], 1e-3, 0.9, 0.999, 1e-8, 0.01)
CALL_THAT_MAKES(optimizer_sgd, optimizer, h[0], 1e-3, 0, 0)
CALL_THAT_FREES(optimizer)
CALL(optimizer_step) { return (void)o, dtensor_optimizer_step(h[0]); }
CALL(optimizer_zero_grad) { return (void)o, dtensor_optimizer_zero_grad(h[0]); }
CALL(optimizer_set_lr) { return (void)o, dtensor_optimizer_set_lr(h[0], 0.1); }
CALL(optimizer_set_option) { return (void)o, dtensor_optimizer_set_option(h[0], "weight_decay", 0.1); }
CALL(checkpoint_save) { return (void)o, dtensor_checkpoint_save(folder_of_checkpoint(), h[0], h[1], 3); }
CALL(checkpoint_load) {
  int64_t step = 0;
  return (void)o, dtensor_checkpoint_load(folder_of_checkpoint(), h[0], h[1], &step);
}
CALL(graph_create) {
  dtensor_graph* made = NULL;
  const dtensor_status status = create_graph(h[0], &made);
  dtensor_graph_free(made);
  return (void)o, status;
}
CALL_THAT_FREES(graph)
CALL_THAT_WRITES(graph_ghosts, int64_t, h[0])
CALL_THAT_MAKES(graph_exchange, tensor, h[0], h[1])
CALL_THAT_MAKES(graph_reduce, tensor, h[0], h[1] == o->handle[kTensor] ? o->stored : h[1])
CALL_THAT_MAKES(graph_gather_source, tensor, h[0], h[1] == o->handle[kTensor] ? o->stored : h[1])
CALL_THAT_MAKES(graph_gather_target, tensor, h[0], h[1] == o->handle[kTensor] ? o->stored : h[1])
CALL_THAT_MAKES(graph_scatter, tensor, h[0], h[1] == o->handle[kTensor] ? o->edges : h[1])
#ifdef WITH_TORCHSCRIPT
CALL_THAT_MAKES(module_load_torchscript, module, h[0], path_of_script())
CALL(module_save_torchscript) {
  char path[4096];
  snprintf(path, sizeof path, "%s_saved", path_of_script());
  return dtensor_module_save_torchscript(h[0] == o->handle[kModule] ? o->script : h[0], path);
}
#endif

#define F(name) "dtensor_" #name, call_##name
enum { kTogether = 1, kAlone = 0 };

// A wrong handle after the first one is reported to all ranks by functions that exchange their arguments.
const function functions[] = {
    {F(last_error), 0, {0}, 0, kAlone, 0, NULL},
    {F(set_timeout), 0, {0}, 0, kAlone, 0, NULL},
    {F(set_bit_identical), 1, {kMesh}, 0, kTogether, 0, NULL},
    {F(mesh_from_mpi), 0, {0}, 0, kTogether, 0, NULL},
    {F(mesh_of_process), 0, {0}, 0, kAlone, 0, NULL},
    {F(mesh_on_gpu), 1, {kMesh}, 0, kTogether, 0, NULL},
    {F(mesh_on_device), 1, {kMesh}, 0, kTogether, 0, NULL},
    {F(mesh_size), 1, {kMesh}, 0, kAlone, 0, NULL},
    {F(mesh_rank), 1, {kMesh}, 0, kAlone, 0, NULL},
    {F(tensor_from_host), 1, {kMesh}, 0, kTogether, 0, NULL},
    {F(tensor_increment_version), 1, {kTensor}, 0, kTogether, 0, NULL},
    {F(tensor_ndim), 1, {kTensor}, 0, kAlone, 0, NULL},
    {F(tensor_size), 1, {kTensor}, 0, kAlone, 0, NULL},
    {F(tensor_dtype), 1, {kTensor}, 0, kAlone, 0, NULL},
    {F(tensor_placements), 1, {kTensor}, 0, kAlone, 0, NULL},
    {F(tensor_local), 1, {kTensor}, 0, kAlone, 0, NULL},
    {F(tensor_content_hash), 1, {kTensor}, 0, kTogether, 0, NULL},
    {F(tensor_redistribute), 1, {kTensor}, 0, kTogether, 0, NULL},
    {F(tensor_to_mesh), 2, {kTensor, kMesh}, 0, kTogether, 0, NULL},
    {F(tensor_copy_full), 1, {kTensor}, 0, kTogether, 0, NULL},
    {F(tensor_copy), 2, {kTensor, kTensor}, 0, kTogether, 0, NULL},
    {F(tensor_item), 1, {kTensor}, 0, kTogether, 0, NULL},
    {F(tensor_compute), 2, {kTensor, kTensor}, 0, kTogether, 0, NULL},
    {F(tensor_set_requires_grad), 1, {kTensor}, 0, kTogether, 0, NULL},
    {F(mse_loss), 2, {kTensor, kTensor}, 0, kTogether, 0, NULL},
    {F(l1_loss), 2, {kTensor, kTensor}, 0, kTogether, 0, NULL},
    {F(cross_entropy_loss), 2, {kTensor, kTensor}, 0, kTogether, 0, NULL},
    {F(tensor_backward), 2, {kTensor, kTensor}, 2, kTogether, 0, make_prediction},
    {F(autograd_grad), 3, {kTensor, kTensor, kTensor}, 2, kTogether, 0, make_prediction},
    {F(tensor_grad), 1, {kTensor}, 0, kAlone, 0, NULL},
    {F(tensor_zero_grad), 1, {kTensor}, 0, kTogether, 0, NULL},
    {F(module_create), 1, {kMesh}, 0, kTogether, 0, NULL},
    {F(module_forward), 2, {kModule, kTensor}, 0, kTogether, 0, NULL},
    {F(module_forward_no_grad), 2, {kModule, kTensor}, 0, kTogether, 0, NULL},
    {F(module_forward_list), 2, {kModule, kTensor}, 0, kTogether, 0, NULL},
    {F(module_train), 1, {kModule}, 0, kTogether, 0, NULL},
    {F(module_clip_grad_norm), 1, {kModule}, 0, kTogether, 0, NULL},
    {F(module_parameter_count), 1, {kModule}, 0, kAlone, 0, NULL},
    {F(module_parameter_name), 1, {kModule}, 0, kAlone, 0, NULL},
    {F(module_parameter), 1, {kModule}, 0, kAlone, 0, NULL},
    {F(module_fully_shard), 1, {kModule}, 0, kTogether, 0, make_module},
    {F(optimizer_adamw), 1, {kModule}, 0, kTogether, 0, NULL},
    {F(optimizer_sgd), 1, {kModule}, 0, kTogether, 0, NULL},
    {F(optimizer_step), 1, {kOptimizer}, 0, kTogether, 0, NULL},
    {F(optimizer_zero_grad), 1, {kOptimizer}, 0, kTogether, 0, NULL},
    {F(optimizer_set_lr), 1, {kOptimizer}, 0, kTogether, 0, NULL},
    {F(optimizer_set_option), 1, {kOptimizer}, 0, kTogether, 0, NULL},
    {F(checkpoint_save), 2, {kModule, kOptimizer}, 2, kTogether, 2, NULL},
    {F(checkpoint_load), 2, {kModule, kOptimizer}, 2, kTogether, 2, NULL},
    {F(graph_create), 1, {kMesh}, 0, kTogether, 0, NULL},
    {F(graph_ghosts), 1, {kGraph}, 0, kAlone, 0, NULL},
    {F(graph_exchange), 2, {kGraph, kTensor}, 0, kTogether, 0, NULL},
    {F(graph_reduce), 2, {kGraph, kTensor}, 0, kTogether, 0, NULL},
    {F(graph_gather_source), 2, {kGraph, kTensor}, 0, kTogether, 0, NULL},
    {F(graph_gather_target), 2, {kGraph, kTensor}, 0, kTogether, 0, NULL},
    {F(graph_scatter), 2, {kGraph, kTensor}, 0, kTogether, 0, NULL},
#ifdef WITH_TORCHSCRIPT
    {F(module_load_torchscript), 1, {kMesh}, 0, kTogether, 0, NULL},
    {F(module_save_torchscript), 1, {kModule}, 0, kTogether, 0, NULL},
#endif
    {F(mesh_free), 1, {kMesh}, 1, kAlone, 0, NULL},
    {F(tensor_free), 1, {kTensor}, 1, kAlone, 0, NULL},
    {F(module_free), 1, {kModule}, 1, kAlone, 0, NULL},
    {F(graph_free), 1, {kGraph}, 1, kAlone, 0, NULL},
    {F(optimizer_free), 1, {kOptimizer}, 1, kAlone, 0, NULL},
};
const int function_count = sizeof functions / sizeof functions[0];

static int is_in_table(const char* name, size_t length) {
  for (int i = 0; i < function_count; ++i) {
    if (strlen(functions[i].name) == length && strncmp(functions[i].name, name, length) == 0) return 1;
  }
  return 0;
}

void check_table(const char* header) {
  static char text[1 << 17];
  FILE* file = fopen(header, "r");
  expect(file != NULL);
  text[fread(text, 1, sizeof text - 1, file)] = 0;
  fclose(file);
  int found = 0;
  for (const char* at = strstr(text, "DTENSOR_API"); at != NULL; at = strstr(at + 1, "DTENSOR_API")) {
    const char* end = strchr(at, '(');
    const char* name = end;
    while (name[-1] == '_' || ((name[-1] >= 'a' && name[-1] <= 'z') || name[-1] == '1')) --name;
#ifndef WITH_TORCHSCRIPT
    if (strncmp(end - 12, "_torchscript", 12) == 0) continue;
#endif
    if (!is_in_table(name, (size_t)(end - name))) fail(__LINE__, name);
    ++found;
  }
  expect(found == function_count);
}

void valid_handles(const function* f, const objects* o, void** handles) {
  for (int i = 0; i < f->count; ++i) handles[i] = o->handle[f->kinds[i]];
}

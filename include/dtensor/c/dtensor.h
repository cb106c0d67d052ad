// The C interface (C99), also for Fortran and other languages: meshes, tensors over the host program's memory, layers,
// gradients, optimizers and checkpoints. The module `dtensor` of fortran/dtensor.f90 is built on it.
//
//   dtensor_mesh* mesh;
//   const int64_t shape[1] = {ranks};
//   if (dtensor_mesh_from_mpi(MPI_Comm_c2f(comm), 1, shape, "dp", &mesh) != DTENSOR_OK) fail(dtensor_last_error());
//
// Every function returns a dtensor_status; no exception leaves the library. Results are written only on success. A
// function that is marked collective must be called by every rank of the mesh, in the same order. Arguments must be
// equal on all ranks, except pointers, local sizes and strides. Handles that a function returns belong to the caller. A
// handle that is null, was freed or comes from elsewhere is DTENSOR_INVALID_ARGUMENT.
//
// Most invalid arguments are one error on all ranks, and the program can go on. An error that only one rank can see (a
// null handle) is its own error there and DTENSOR_COMMUNICATION on the other ranks, in the same call or the next one.
// Then the mesh cannot communicate any more; dtensor_mesh_from_mpi makes a new one. Calls are never matched with those
// of other functions.
#pragma once

#include <stdint.h>

#include "dtensor/export.h"

#ifdef __cplusplus
extern "C" {
#endif

// Result of a call.
enum dtensor_status {
  DTENSOR_OK = 0,                // success
  DTENSOR_INVALID_ARGUMENT = 1,  // the arguments, or the files of a checkpoint, are not what the call expects
  DTENSOR_COMMUNICATION = 2,     // another rank failed, left, made a different call or did not answer in time
  DTENSOR_OUT_OF_MEMORY = 3,     // an allocation failed
  DTENSOR_INTERNAL = 4,          // any other error
};
typedef enum dtensor_status dtensor_status;  // the same without `enum`

// Element types.
enum dtensor_dtype {
  DTENSOR_FLOAT32 = 0,  // float, real32
  DTENSOR_FLOAT64 = 1,  // double, real64
  DTENSOR_INT32 = 2,    // int32_t
  DTENSOR_INT64 = 3,    // int64_t
  DTENSOR_INT8 = 4,     // int8_t
  DTENSOR_INT16 = 5,    // int16_t
  DTENSOR_UINT8 = 6,    // uint8_t
};
typedef enum dtensor_dtype dtensor_dtype;  // the same without `enum`

// A mesh of the ranks of a communicator.
typedef struct dtensor_mesh dtensor_mesh;
// A distributed tensor. It keeps the graph of its computation and its mesh alive.
typedef struct dtensor_tensor dtensor_tensor;
// A layer with parameters.
typedef struct dtensor_module dtensor_module;
// An optimizer of the parameters of a module. It keeps the parameters alive.
typedef struct dtensor_optimizer dtensor_optimizer;
// This rank's part of a graph whose nodes are distributed over the ranks. It keeps its mesh alive.
typedef struct dtensor_graph dtensor_graph;

// An array in the memory of the host program, or of its GPU (dtensor_mesh_on_gpu).
struct dtensor_host_array {
  void* data;              // first element; may be null if the array has no elements
  dtensor_dtype dtype;     // type of the elements
  int ndim;                // number of dimensions
  const int64_t* sizes;    // one per dimension
  const int64_t* strides;  // in elements, >= 0, one per dimension; null: row-major without gaps
};
typedef struct dtensor_host_array dtensor_host_array;  // the same without `struct`

// Text of the last call on this thread that failed; empty if none has failed. Valid until the next call that fails.
DTENSOR_API const char* dtensor_last_error(void);

// Meshes.

// Limits how long a call waits for other ranks, of meshes that are created later over communicators without a mesh. In
// seconds, > 0; infinity: no limit. Else the environment variable DTENSOR_TIMEOUT sets it; without both it is 300. A
// call that waits longer is DTENSOR_COMMUNICATION.
DTENSOR_API dtensor_status dtensor_set_timeout(double seconds);
// From this call on, results of this thread's calls have the same bits on every mesh, or the call is
// DTENSOR_INVALID_ARGUMENT with the name of an operator without such a form (docs/guide/same_bits.md). Contracted
// dimensions are summed in blocks of `block` indices, in [8, 512], on which results depend; 0: results may differ in
// their last bits, which is the default. Collective.
DTENSOR_API dtensor_status dtensor_set_bit_identical(const dtensor_mesh* mesh, int block);
// A mesh over all ranks of an MPI communicator of the program, which owns MPI. `comm` is the communicator's number in
// Fortran: MPI_Comm_c2f(comm) in C, the integer itself in Fortran. The library communicates on duplicates of it. The
// product of `shape` is the number of ranks; ranks are row-major. `names` lists the dimensions ("dp,tp"); null: no
// names. Collective over `comm`; ranks that pass different communicators get an error after the timeout. What the
// library keeps for `comm` is freed with it, if meshes and tensors over it are freed before.
DTENSOR_API dtensor_status dtensor_mesh_from_mpi(int comm, int ndim, const int64_t* shape, const char* names,
                                                 dtensor_mesh** mesh);
// A one-dimensional mesh of this process only. Needs no MPI.
DTENSOR_API dtensor_status dtensor_mesh_of_process(dtensor_mesh** mesh);
// The ranks, shape and names of `mesh`, for tensors in the memory of GPUs, which the library moves with NCCL. `gpu`:
// number of this rank's GPU; -1: its number among the ranks of its host. dtensor_tensor_from_host then takes arrays in
// device memory, and dtensor_tensor_local returns them. The program has completed its work on an array before it calls
// the library, and waits for the device before it reads a result. Needs a library built with CUDA and NCCL. Collective.
DTENSOR_API dtensor_status dtensor_mesh_on_gpu(const dtensor_mesh* mesh, int gpu, dtensor_mesh** result);
// The same for any device that LibTorch supports: "xpu", "xpu:1", "mps", "cuda" (also of a LibTorch for ROCm).
// Without a number: the current device of LibTorch. Collectives copy through host memory and run on the ranks'
// communicator of `mesh`; between NVIDIA GPUs dtensor_mesh_on_gpu is faster. Collective.
DTENSOR_API dtensor_status dtensor_mesh_on_device(const dtensor_mesh* mesh, const char* device, dtensor_mesh** result);
// Number of ranks, and this rank in [0, size).
DTENSOR_API dtensor_status dtensor_mesh_size(const dtensor_mesh* mesh, int* size);
DTENSOR_API dtensor_status dtensor_mesh_rank(const dtensor_mesh* mesh, int* rank);
// Accepts null, as all functions that free; an invalid handle is ignored. Tensors and modules on the mesh stay valid.
DTENSOR_API void dtensor_mesh_free(dtensor_mesh* mesh);

// Tensors.

// A tensor over the host's memory, without a copy: `local` is this rank's part of it. `placements` has one entry per
// mesh dimension: "[R]" (each rank passes all elements), "[S(0)]" (rank r passes the r-th chunk of ceil(n / ranks)
// indices of dimension 0), "[RS(0, 3 0 5)]" (the numbers of indices that the ranks pass) and others as in
// dtensor/placement.h. Dimensions count from 0. The global sizes follow from the local ones. Memory and layout must
// stay valid while the tensor, or a result with a graph on it, is in use. After the host writes to the memory, call
// dtensor_tensor_increment_version. Collective: an invalid argument on one rank is an error on all.
DTENSOR_API dtensor_status dtensor_tensor_from_host(const dtensor_mesh* mesh, const dtensor_host_array* local,
                                                    const char* placements, dtensor_tensor** tensor);
// Announces that the host has written to this rank's part, so that values derived from it are computed anew. Every rank
// calls it; no communication.
DTENSOR_API dtensor_status dtensor_tensor_increment_version(dtensor_tensor* tensor);
// Accepts null. Does not free memory of the host.
DTENSOR_API void dtensor_tensor_free(dtensor_tensor* tensor);

// Number of dimensions.
DTENSOR_API dtensor_status dtensor_tensor_ndim(const dtensor_tensor* tensor, int* ndim);
// Global size of dimension `dim` in [0, ndim).
DTENSOR_API dtensor_status dtensor_tensor_size(const dtensor_tensor* tensor, int dim, int64_t* size);
// Type of the elements.
DTENSOR_API dtensor_status dtensor_tensor_dtype(const dtensor_tensor* tensor, dtensor_dtype* dtype);
// Placements as text. Valid until the next call of this function for this handle, or until it is freed.
DTENSOR_API dtensor_status dtensor_tensor_placements(dtensor_tensor* tensor, const char** placements);
// This rank's part, without a copy: the memory of dtensor_tensor_from_host, or memory of the library. The fields are
// valid until the next call of this function for this handle, or until it is freed. Under a Partial placement it is
// this rank's summand.
DTENSOR_API dtensor_status dtensor_tensor_local(dtensor_tensor* tensor, dtensor_host_array* local);

// A new tensor of the same values with other placements. Collective. Differentiable.
DTENSOR_API dtensor_status dtensor_tensor_redistribute(const dtensor_tensor* tensor, const char* placements,
                                                       dtensor_tensor** result);
// A copy on a mesh of the same shape, with the same placements, none of them Partial: between host memory and a device.
// Collective. Differentiable.
DTENSOR_API dtensor_status dtensor_tensor_to_mesh(const dtensor_tensor* tensor, const dtensor_mesh* mesh,
                                                  dtensor_tensor** result);
// Writes all elements to an array of the tensor's sizes and dtype in host memory on every rank, with any strides.
// Collective: an invalid array on one rank is an error on all.
DTENSOR_API dtensor_status dtensor_tensor_copy_full(const dtensor_tensor* tensor, const dtensor_host_array* array);
// Writes the values of `source` to `target`, which has the same sizes and any placements and strides, for instance the
// host's own field. Not differentiable. Collective.
DTENSOR_API dtensor_status dtensor_tensor_copy(dtensor_tensor* target, const dtensor_tensor* source);
// The value of a tensor with one element. Collective.
DTENSOR_API dtensor_status dtensor_tensor_item(const dtensor_tensor* tensor, double* value);

// Writes the SHA-256 of all elements in row-major order, 64 hexadecimal digits and a null character. It is that of the
// full tensor on one rank, whatever the mesh and the placements. Collective.
DTENSOR_API dtensor_status dtensor_tensor_content_hash(const dtensor_tensor* tensor, char* digits);

// A new tensor by an operator of PyTorch on `count` tensors of one mesh: "add", "sub", "mul", "div" and "pow" of two,
// which broadcast; "neg", "abs", "exp", "log", "sqrt", "sin", "cos", "tanh", "sigmoid", "relu", "gelu" and "silu" of
// one; "sum" and "mean" of one, over all elements; "cat" of one or more along their last dimension. A number is a
// tensor without dimensions. Collective. Differentiable.
DTENSOR_API dtensor_status dtensor_tensor_compute(const char* name, int count, const dtensor_tensor* const* operands,
                                                  dtensor_tensor** result);

// Gradients.

// Whether backward computes a gradient of this tensor; 0 or 1. Floating-point tensors that no recorded call returned.
// Collective.
DTENSOR_API dtensor_status dtensor_tensor_set_requires_grad(dtensor_tensor* tensor, int on);
// The scalar mean of (prediction - target)^2 over all elements. Collective. Differentiable.
DTENSOR_API dtensor_status dtensor_mse_loss(const dtensor_tensor* prediction, const dtensor_tensor* target,
                                            dtensor_tensor** loss);
// The scalar mean of |prediction - target|. Collective. Differentiable.
DTENSOR_API dtensor_status dtensor_l1_loss(const dtensor_tensor* prediction, const dtensor_tensor* target,
                                           dtensor_tensor** loss);
// The scalar mean over rows of -log softmax(prediction)[target]: scores [rows, classes, ...] and DTENSOR_INT64 class
// indices [rows, ...] in [0, classes), or -100 for rows without a class. Collective. Differentiable.
DTENSOR_API dtensor_status dtensor_cross_entropy_loss(const dtensor_tensor* prediction, const dtensor_tensor* target,
                                                      dtensor_tensor** loss);
// Adds the gradients of parameters and of tensors that require them. `gradient`: the derivative with respect to
// `tensor`, of its sizes and dtype; null for a tensor with one element. The graph is freed. Collective.
DTENSOR_API dtensor_status dtensor_tensor_backward(const dtensor_tensor* tensor, const dtensor_tensor* gradient);
// The gradient that backward calls have added, or null if there is none. It shares the memory of the gradient.
DTENSOR_API dtensor_status dtensor_tensor_grad(const dtensor_tensor* tensor, dtensor_tensor** gradient);
// torch.autograd.grad: the derivatives of `output` with respect to `count` tensors, without adding to gradients.
// Derived are tensors that require gradients, and results of recorded calls on them; a result is null if `output` does
// not depend on its tensor. `gradient` as in dtensor_tensor_backward. `create_graph`: 1 records the results, which can
// then be used in a loss or derived again, and keeps the graph; 0 frees it. Collective.
DTENSOR_API dtensor_status dtensor_autograd_grad(const dtensor_tensor* output, const dtensor_tensor* gradient,
                                                 int count, const dtensor_tensor* const* tensors,
                                                 dtensor_tensor** results, int create_graph);
// Removes the gradient.
DTENSOR_API dtensor_status dtensor_tensor_zero_grad(dtensor_tensor* tensor);

// Modules.

// A layer by name, with parameters that every rank of the mesh stores in full:
//   "Linear"      sizes {in, out}: x W^T + b
//   "LayerNorm"   sizes {features}, over the last dimension
//   "RMSNorm"     sizes {features}, over the last dimension
//   "Perceptron"  sizes {in, hidden..., out}: Linear layers "0", "1", ... with `activation` between them
//   "Conv1d", "Conv2d", "Conv3d"  sizes {in, out, kernel}, then optionally stride and zero padding (1 and 0 by
//   default),
//                 the same along each spatial dimension: [images, in, ...] to [images, out, ...]. Spatial dimensions
//                 may be split; the layer then exchanges halos.
// `activation`: "tanh", "relu", "gelu" or "silu"; null or "" for other layers. `dtype`: DTENSOR_FLOAT32 or
// DTENSOR_FLOAT64. Initial values are those of torch.nn; they depend on `seed` only, not on the number of ranks.
// Collective.
DTENSOR_API dtensor_status dtensor_module_create(const dtensor_mesh* mesh, const char* name, int count,
                                                 const int64_t* sizes, const char* activation, dtensor_dtype dtype,
                                                 uint64_t seed, dtensor_module** module);
// Accepts null. The graph of a result stays usable.
DTENSOR_API void dtensor_module_free(dtensor_module* module);
// Applies the layer to a floating-point tensor on the mesh, with any placements: [..., features] to [..., out], and
// convolutions as above. The gradients of the parameters are reduced over the ranks. Collective. Differentiable.
DTENSOR_API dtensor_status dtensor_module_forward(const dtensor_module* module, const dtensor_tensor* x,
                                                  dtensor_tensor** result);
// The same without recording a graph.
DTENSOR_API dtensor_status dtensor_module_forward_no_grad(const dtensor_module* module, const dtensor_tensor* x,
                                                          dtensor_tensor** result);
// For TorchScript modules with several inputs or results; the count of results must be that of the module. `record`: 1,
// or 0 for no graph. Collective. Differentiable.
DTENSOR_API dtensor_status dtensor_module_forward_list(const dtensor_module* module, int input_count,
                                                       const dtensor_tensor* const* inputs, int result_count,
                                                       dtensor_tensor** results, int record);
// Training mode (1, the default) or evaluation mode (0), which dropout and similar layers of TorchScript modules read.
// Collective.
DTENSOR_API dtensor_status dtensor_module_train(dtensor_module* module, int on);
// Scales the gradients of all parameters so that their total 2-norm is at most `max_norm`; `norm` gets the norm before,
// and may be null. Call it between backward and step. Collective.
DTENSOR_API dtensor_status dtensor_module_clip_grad_norm(const dtensor_module* module, double max_norm, double* norm);
// Parameters: their number, and name and tensor of parameter `index` in [0, count). The name is valid as long as the
// module. The tensor shares the parameter's memory and gradient.
DTENSOR_API dtensor_status dtensor_module_parameter_count(const dtensor_module* module, int* count);
DTENSOR_API dtensor_status dtensor_module_parameter_name(const dtensor_module* module, int index, const char** name);
DTENSOR_API dtensor_status dtensor_module_parameter(const dtensor_module* module, int index,
                                                    dtensor_tensor** parameter);
// Stores 1/ranks of each parameter, gradient and optimizer state on each rank (FSDP). The mesh has one dimension, or
// two (replicas, shards). Call it once, before an optimizer is created. Collective.
DTENSOR_API dtensor_status dtensor_module_fully_shard(dtensor_module* module);

// Optimizers.

// AdamW with decoupled weight decay. Options as in torch.optim.AdamW (usual: 1e-3, 0.9, 0.999, 1e-8, 0.01). Steps are
// bit-equal on all layouts if the gradients are. Collective.
DTENSOR_API dtensor_status dtensor_optimizer_adamw(const dtensor_module* module, double lr, double beta1, double beta2,
                                                   double eps, double weight_decay, dtensor_optimizer** optimizer);
// Stochastic gradient descent, as torch.optim.SGD. Collective.
DTENSOR_API dtensor_status dtensor_optimizer_sgd(const dtensor_module* module, double lr, double momentum,
                                                 double weight_decay, dtensor_optimizer** optimizer);
// Accepts null.
DTENSOR_API void dtensor_optimizer_free(dtensor_optimizer* optimizer);
// Updates the parameters that have a gradient. Collective.
DTENSOR_API dtensor_status dtensor_optimizer_step(dtensor_optimizer* optimizer);
// Removes the gradients of all parameters.
DTENSOR_API dtensor_status dtensor_optimizer_zero_grad(dtensor_optimizer* optimizer);
// Sets the learning rate of the next steps. Collective.
DTENSOR_API dtensor_status dtensor_optimizer_set_lr(dtensor_optimizer* optimizer, double lr);
// Sets another option of the next steps by its name in torch.optim: "beta1", "beta2", "eps", "weight_decay" and
// "amsgrad" of AdamW, "momentum", "dampening", "weight_decay" and "nesterov" of SGD. Switches are 0 or 1. Collective.
DTENSOR_API dtensor_status dtensor_optimizer_set_option(dtensor_optimizer* optimizer, const char* name, double value);

// Checkpoints.

// Saves parameters, optimizer state (unless `optimizer` is null) and a step count to a folder of safetensors files. An
// existing checkpoint is replaced once all files are written. Collective: an error on one rank is an error on all.
DTENSOR_API dtensor_status dtensor_checkpoint_save(const char* directory, const dtensor_module* module,
                                                   dtensor_optimizer* optimizer, int64_t step);
// Loads them in place. The number of ranks and the placements may differ from those of the save. With a null
// `optimizer`, stored optimizer state is ignored. Collective: an error on one rank is an error on all.
DTENSOR_API dtensor_status dtensor_checkpoint_load(const char* path, const dtensor_module* module,
                                                   dtensor_optimizer* optimizer, int64_t* step);

// Graphs. An edge belongs to the rank of its target. A layer of a graph network: exchange, gather at both ends, "cat"
// and a module on the rows of edges, scatter.

// This rank's part of a graph over a mesh of one dimension: `owned` nodes, and `edges` edges. `send_counts`: for each
// rank, the number of this rank's nodes that it needs as ghosts; `send_rows`: these nodes, in [0, owned), rank after
// rank. The ghosts of a rank are ordered by the rank that sends them, then as in its list. Edge i goes from row
// `source[i]` in [0, owned + ghosts), where ghosts follow the owned nodes, to row `target[i]` in [0, owned). The arrays
// are copied. Collective: an invalid argument on one rank is an error on all.
DTENSOR_API dtensor_status dtensor_graph_create(const dtensor_mesh* mesh, int64_t owned, const int64_t* send_counts,
                                                const int64_t* send_rows, int64_t edges, const int64_t* source,
                                                const int64_t* target, dtensor_graph** graph);
// Accepts null. Graphs of results stay usable.
DTENSOR_API void dtensor_graph_free(dtensor_graph* graph);
// Number of ghosts of this rank.
DTENSOR_API dtensor_status dtensor_graph_ghosts(const dtensor_graph* graph, int64_t* ghosts);
// Rows of nodes [owned, ...] of all ranks, ordered by rank, to those followed by ghosts [owned + ghosts, ...]: each
// rank has its own part, "[RS(0, n0 n1 ...)]" with the numbers of rows of the ranks. Collective. Differentiable.
DTENSOR_API dtensor_status dtensor_graph_exchange(const dtensor_graph* graph, const dtensor_tensor* rows,
                                                  dtensor_tensor** result);
// The adjoint: [owned + ghosts, ...] to [owned, ...], which adds ghosts to the rows of their owners. Collective.
// Differentiable.
DTENSOR_API dtensor_status dtensor_graph_reduce(const dtensor_graph* graph, const dtensor_tensor* rows,
                                                dtensor_tensor** result);
// Rows [owned + ghosts, ...] at the sources, and at the targets, of this rank's edges: [edges, ...]. Collective.
// Differentiable.
DTENSOR_API dtensor_status dtensor_graph_gather_source(const dtensor_graph* graph, const dtensor_tensor* rows,
                                                       dtensor_tensor** result);
DTENSOR_API dtensor_status dtensor_graph_gather_target(const dtensor_graph* graph, const dtensor_tensor* rows,
                                                       dtensor_tensor** result);
// The sum of the rows [edges, ...] of the edges to each target: [owned, ...]. Collective. Differentiable.
DTENSOR_API dtensor_status dtensor_graph_scatter(const dtensor_graph* graph, const dtensor_tensor* rows,
                                                 dtensor_tensor** result);

// Loads a file of torch.jit.save as a module. Its forward takes tensors and returns a tensor, or a tuple or list of
// tensors (dtensor_module_forward_list). Every rank of the mesh stores the parameters and buffers in full, with the
// names of the file; dtensor_module_fully_shard shards the parameters. Parameters that require no gradient in the file
// stay so. Operators without a sharding rule gather their operands. Collective: an error on one rank is an error on
// all. Defined in a library of its own, dtensor_torchscript (CMake target dtensor::torchscript).
DTENSOR_API dtensor_status dtensor_module_load_torchscript(const dtensor_mesh* mesh, const char* path,
                                                           dtensor_module** module);
// Writes such a module, as it is now trained, to a file of torch.jit.save, for Python or torch::jit::load. Parameters
// are full regular tensors there. Rank 0 writes. Collective: an error on one rank is an error on all. Defined in
// dtensor_torchscript.
DTENSOR_API dtensor_status dtensor_module_save_torchscript(const dtensor_module* module, const char* path);

#ifdef __cplusplus
}
#endif

// A table of all functions of dtensor/c/dtensor.h, for tests that call each of them.
#pragma once

#include "host.h"

enum kind { kMesh, kTensor, kModule, kOptimizer, kGraph, kKinds };
enum { kMaxHandles = 3 };  // of one call

// Objects with which each function can be called.
typedef struct objects {
  MPI_Comm comm;
  void* handle[kKinds];               // one of each kind, of the communicator's mesh
  dtensor_tensor *target, *y, *loss;  // of the output's sizes; a prediction; its loss
  dtensor_tensor* classes;
  dtensor_tensor *stored, *edges;  // rows of nodes with ghosts, and of edges
  dtensor_module* script;          // of TorchScript, in programs with it
  double values[12], goals[8];
  int64_t labels[4];
} objects;

void make_objects(objects* o, MPI_Comm comm);
void free_objects(objects* o);

typedef struct function {
  const char* name;
  // Calls the function with the handles that it takes, of these kinds in the order of its parameters, and with valid
  // arguments besides. Frees what it returns.
  dtensor_status (*call)(objects* o, void* const* handles);
  int count;
  enum kind kinds[kMaxHandles];
  int optional;               // bit i: handle i may be null
  int collective;             // whether ranks call it together
  int reported;               // whether invalid handles of these positions (bits) are one error on all ranks
  void (*renew)(objects* o);  // makes the objects ready for another call; may be null
} function;

extern const function functions[];
extern const int function_count;

// Fails if a function of the header is not in the table.
void check_table(const char* header);
// The handles of the objects that the function is to be called with.
void valid_handles(const function* f, const objects* o, void** handles);

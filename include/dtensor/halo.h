// Halos: copies of other ranks' elements, the ghosts, around what a rank owns. GraphHalo is for rows of a graph (atoms,
// nodes), GridHalo for stencils on the regular tensors of an image, a volume or a field. Operators on DTensors
// (convolutions, pools, paddings) exchange the elements that they need by themselves.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "dtensor/comm.h"
#include "dtensor/export.h"
#include "dtensor/mesh.h"
#include "dtensor/placement.h"
#include "dtensor/tensor.h"

namespace dtensor {

// Which rows each rank sends to which. Immutable; a cheap handle.
//
//   GraphHalo halo(ranks, owned, send_lists);
//   at::Tensor h = halo.exchange(x);                             // [owned, F] -> [owned + ghosts, F]
//   at::Tensor m = h.index_select(0, source) * weights;          // gather over edges
//   x = at::zeros_like(x).index_add(0, target, m);               // scatter to owned rows
//
// A model that reads ghosts through exchange() has the gradients of one rank with all rows: the backward pass sends the
// gradients of ghosts to their owners, which add them. Each rank differentiates its own share of the loss, and receives
// the gradient of the sum of all shares.
class DTENSOR_API GraphHalo {
 public:
  // `owned`: the number of rows of this rank; 0 is valid. `send_lists`: for each rank of `ranks`, this one included,
  // the rows that this rank sends to it: int32 or int64 [n] with values in [0, owned), on any device. A list may be
  // empty, may contain a row several times (each occurrence is a ghost of its own), and a rank may send to itself: both
  // serve periodic images. `receive_counts`, if not empty: for each rank, the number of rows that this rank expects
  // from it.
  //
  // Collective over `ranks`: one all-to-all of a number per rank, and one all-reduce. Throws the same c10::Error on
  // every rank if a list or a count of any rank is invalid, or if a rank expects other counts than the others send.
  GraphHalo(const Communicator& ranks, std::int64_t owned, at::TensorList send_lists,
            at::IntArrayRef receive_counts = {});

  // The number of rows of this rank, and of the ghosts that it receives.
  std::int64_t owned() const;
  std::int64_t ghosts() const;
  // The number of rows that this rank sends to each rank, and that it receives from each rank.
  const std::vector<std::int64_t>& send_counts() const;
  const std::vector<std::int64_t>& receive_counts() const;
  // The ranks that share the graph.
  const Communicator& ranks() const;

  // Returns `rows` [owned, ...] followed by the ghosts: [owned + ghosts, ...]. Ghosts are ordered by the rank that
  // sends them, then as in its list. Any dtype and device of the communicator; the dtype and the other dimensions are
  // the same on every rank. Differentiable any number of times, each time by the adjoint operator; forward-mode
  // derivatives are not supported. Collective: one all-to-all, or none if no rank sends to another. Throws c10::Error
  // if `rows` is a DTensor or has another number of rows.
  at::Tensor exchange(const at::Tensor& rows) const;
  // The adjoint of exchange(): sends the ghosts of `rows` [owned + ghosts, ...] to their owners. Returns [owned, ...]:
  // the owned rows plus the copies of other ranks, added in the order of ranks, in float32 for bfloat16 and float16. On
  // CUDA the order is fixed only under deterministic algorithms of ATen. Otherwise as exchange().
  at::Tensor reduce(const at::Tensor& rows) const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

// The part of a graph that one rank computes: its nodes, and the edges to them.
struct GraphPart {
  at::Tensor nodes;                    // int64 [owned]: owned nodes of the graph, ascending
  at::Tensor ghosts;                   // int64 [ghosts]: nodes of other ranks, in the order of GraphHalo::exchange()
  at::Tensor edges;                    // int64 [edges of the part]: their positions in the graph, ascending
  at::Tensor source, target;           // int64 [edges of the part]: their ends as rows, owned nodes before ghosts
  std::vector<at::Tensor> send_lists;  // for GraphHalo: the rows of this rank that are sources of edges of other ranks
};

// The part of `rank`, one of `ranks`, of a graph that every rank has. Edge i goes from node `source[i]` to node
// `target[i]` (int64 [edges]) and belongs to the rank of its target; `owner` (int64 [nodes]) is the rank of each node,
// from any partitioner. On the host. Does not communicate. Throws c10::Error for other dtypes or shapes, and for nodes
// or ranks out of range.
DTENSOR_API GraphPart graph_part(const at::Tensor& source, const at::Tensor& target, const at::Tensor& owner, int rank,
                                 int ranks);

// Whether this build of the library has METIS.
DTENSOR_API bool is_metis_available();

// Assigns the `nodes` nodes of a graph to `ranks`, with few edges between ranks and about equally many nodes on each:
// the `owner` of graph_part(), int64 [nodes], the same on every rank. Edges are as in graph_part(); the first rank of
// `ranks` partitions its graph with METIS (k-way), and the arguments of the others are not used. Collective:
// broadcasts. Throws the same c10::Error on every rank if the graph is invalid, or if the library was built without
// METIS.
DTENSOR_API at::Tensor partition_graph(const at::Tensor& source, const at::Tensor& target, std::int64_t nodes,
                                       const Communicator& ranks);

// The values of ghosts outside of the grid. `reflect` does not repeat the first or last element.
enum class Boundary : std::uint8_t { zero, replicate, reflect, periodic };

// Ghost layers along one dimension.
struct GhostLayers {
  std::int64_t dim;                    // of the grid
  std::int64_t before = 0, after = 0;  // numbers of layers before the first and after the last element
  Boundary boundary = Boundary::zero;  // values of ghosts outside of the grid
};

// The ghost layers of a grid whose dimensions are sharded. Immutable; a cheap handle.
//
//   GridHalo halo(mesh, {Shard(0), Shard(1)}, {ny, nx}, {{0, 1, 1}, {1, 1, 1, Boundary::periodic}});
//   at::Tensor extended = halo.exchange(local);                 // with ghosts; differentiable
//   DTensor field = halo.from_local(array);                     // the interior; shares the array's memory
//   halo.update(array);                                         // overwrites the ghosts in the host's array
//
// Layers may be thicker than a shard: ghosts then come from several ranks. Each rank differentiates its own share of
// the loss, and receives the gradient of the sum of all shares.
class DTENSOR_API GridHalo {
 public:
  // `sizes`: of the grid. Dimensions may be sharded or not; each rank's part must be one range. Collective: one
  // all-to-all of a number per rank and one all-reduce for each entry of `layers`. Throws c10::Error on every rank if a
  // layer does not fit the grid: a dimension that is out of range or given twice, a negative number of layers, more
  // reflected layers than `size - 1`, or more periodic ones than `size`.
  GridHalo(const DeviceMesh& mesh, const Placements& placements, at::IntArrayRef sizes,
           std::vector<GhostLayers> layers);

  // The local part followed and preceded by its ghosts along each dimension of the layers, corners included. Along a
  // dimension of which this rank has no elements there are no ghosts. Differentiable any number of times; the adjoint
  // sends the gradients of ghosts back to the owners, which add them. Collective: one all-to-all for each dimension.
  at::Tensor exchange(const at::Tensor& local) const;

  // The view of `array`, a local part with ghosts, without its ghosts.
  at::Tensor interior(const at::Tensor& array) const;
  // The DTensor of the interior of `array`, in its memory: no copy. Operators on it exchange the elements that they
  // read, and do not use the ghosts. `array` is row-major, or a copy is made. Differentiable.
  DTensor from_local(const at::Tensor& array) const;
  // Overwrites the ghosts of `array` with their owners' elements. Its memory stays in place; autograd does not record
  // it. Collective as exchange().
  void update(const at::Tensor& array) const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace dtensor

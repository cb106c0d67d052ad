// What the positions of a convolution's result read, as columns of a matrix. Of its two tensors with spatial dimensions
// one has a position for each window of the other, the image: the result of a convolution has those of its input, the
// input of a transposed one those of its result.
#pragma once

#include <array>

#include "ops/local_kernels/local_args.h"

namespace dtensor::bit_identical {

// A tensor's place on the mesh; a null spec is Replicate.
struct Placed {
  const TensorSpec* spec;
  at::IntArrayRef sizes;  // global
};

// How this rank's positions along one spatial dimension of the result read the source.
struct Reads {
  std::int64_t positions = 1, kernel = 1;
  std::vector<std::int64_t> source{0};  // [kernel, positions]: an index of the source, or -1 for zero
};

// A range of images, lines and positions of a line of the result. A line is a range of its last dimension.
struct ResultPart {
  std::int64_t image, images, line, lines, position, positions;
  std::int64_t count() const { return images * lines * positions; }
};

class Windows {
 public:
  // The rows of `source` that this rank's part of `result` reads; ranks exchange them. `reversed`: the source has a
  // position for each window of the result.
  Windows(const LocalCall& call, const at::Tensor& source, const Placed& of_source, const Placed& of_result,
          bool reversed);

  std::int64_t kernel() const { return dims_[0].kernel * dims_[1].kernel * dims_[2].kernel; }
  std::int64_t images() const { return source_.size(0); }
  std::int64_t channels() const { return source_.size(1); }
  std::int64_t lines() const { return dims_[0].positions * dims_[1].positions; }
  std::int64_t positions() const { return dims_[2].positions; }  // of a line

  // Parts of the result, of few enough columns of `channels` for a cache, with lines cut at multiples of `block`.
  std::vector<ResultPart> parts(std::int64_t images, std::int64_t channels, std::int64_t block) const;
  // What each position of a part reads: [channels * kernel, positions].
  at::Tensor columns(std::int64_t first_channel, std::int64_t channels, const ResultPart& part) const;

 private:
  template <class T>
  void copy_columns(std::int64_t first_channel, const ResultPart& part, const at::Tensor& out) const;

  at::Tensor source_;  // [images, channels, three spatial dimensions]
  std::array<Reads, 3> dims_;
};

}  // namespace dtensor::bit_identical

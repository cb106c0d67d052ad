// Random tensors of any dtype and layout, and a safetensors reader that is independent
// of the library.
#pragma once

#include <filesystem>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>

#include "dtensor/checkpoint.h"
#include "support/folder.h"
#include "support/ranks.h"

namespace dtensor::test {

inline const std::vector<at::ScalarType>& all_dtypes() {
  static const std::vector<at::ScalarType> dtypes = {at::kDouble, at::kFloat, at::kHalf,        at::kBFloat16,
                                                     at::kLong,   at::kInt,   at::kShort,       at::kChar,
                                                     at::kByte,   at::kBool,  at::kComplexFloat};
  return dtypes;
}

// Returns a tensor of random bits, NaNs included.
inline at::Tensor any_bits(Draw& draw, const Shape& sizes, at::ScalarType dtype) {
  at::Tensor t = at::empty(sizes, dtype);
  auto* bytes = static_cast<unsigned char*>(t.mutable_data_ptr());
  for (std::size_t i = 0; i < t.nbytes(); ++i) {
    bytes[i] = static_cast<unsigned char>(draw.integer(0, dtype == at::kBool ? 1 : 255));
  }
  return t;
}

inline std::string bits_of(const at::Tensor& t) {
  const at::Tensor regular = t.detach().contiguous();
  return {static_cast<const char*>(regular.const_data_ptr()), regular.nbytes()};
}

// Returns random placements: Replicate, Shard, StridedShard, ZigzagShard and at most one RaggedShard.
inline Placements any_layout(Draw& draw, const DeviceMesh& mesh, const Shape& sizes) {
  Placements result;
  bool ragged = false;
  for (std::int64_t axis = 0; axis < mesh.ndim(); ++axis) {
    const auto dim = draw.integer(-1, static_cast<std::int64_t>(sizes.size()) - 1);
    const auto kind = draw.integer(0, 5);
    if (dim < 0) {
      result.push_back(Replicate());
    } else if (kind == 4 && !ragged) {
      Shape parts;
      std::int64_t left = sizes[static_cast<std::size_t>(dim)];
      for (std::int64_t rank = 0; rank + 1 < mesh.size(axis); ++rank) {
        parts.push_back(draw.integer(0, left));
        left -= parts.back();
      }
      parts.push_back(left);
      result.push_back(RaggedShard(dim, parts));
      ragged = true;
    } else if (kind == 5) {
      result.push_back(ZigzagShard(dim));
    } else {
      result.push_back(kind > 1 ? StridedShard(dim, kind) : Shard(dim));
    }
    if (draw.coin()) result.back() = result.back().as_storage(result.back().is_shard());
  }
  return result;
}

struct Raw {
  std::string dtype, bytes;
  Shape sizes;
};

// Parses a file by the specification: 8 bytes of header length, JSON, then data without gaps or overlaps up to the end.
inline std::map<std::string, Raw> parse_safetensors(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string all((std::istreambuf_iterator<char>(in)), {});
  std::uint64_t length = 0;
  TORCH_CHECK(all.size() >= 8, path, " is too short");
  std::memcpy(&length, all.data(), 8);
  TORCH_CHECK(length + 8 <= all.size() && all.at(8) == '{' && length % 8 == 0, path, ": bad header");
  const auto header = nlohmann::json::parse(all.substr(8, length));
  std::map<std::string, Raw> tensors;
  std::map<std::uint64_t, std::uint64_t> ranges;
  for (const auto& [name, e] : header.items()) {
    if (name == "__metadata__") {
      for (const auto& [key, value] : e.items()) TORCH_CHECK(value.is_string(), key);
      continue;
    }
    const auto begin = e.at("data_offsets")[0].get<std::uint64_t>(), end = e.at("data_offsets")[1].get<std::uint64_t>();
    tensors[name] = {e.at("dtype"), all.substr(8 + length + begin, end - begin), e.at("shape").get<Shape>()};
    if (begin != end) ranges[begin] = end;
  }
  std::uint64_t position = 0;
  for (const auto& [begin, end] : ranges) {
    TORCH_CHECK(begin == position, "gap or overlap of data at byte ", position);
    position = end;
  }
  TORCH_CHECK(8 + length + position == all.size(), path, ": ", all.size(), " bytes, ", position, " used");
  return tensors;
}

// Returns the error that fn throws on each rank, or "".
inline std::vector<std::string> errors_on(int ranks, const std::function<void(const Communicator&)>& fn) {
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  run_local(ranks, [&](Communicator world) {
    try {
      fn(world);
    } catch (const c10::Error& error) {
      errors[static_cast<std::size_t>(world.rank())] = error.what_without_backtrace();
    }
  });
  return errors;
}

// Expects one error, equal on every rank, that contains all `parts`.
inline void expect_error(const std::vector<std::string>& errors, const std::vector<std::string>& parts) {
  for (const auto& error : errors) {
    EXPECT_FALSE(error.empty());
    EXPECT_EQ(error, errors[0]);
    for (const auto& part : parts) EXPECT_NE(error.find(part), std::string::npos) << part << " not in: " << error;
  }
}

constexpr SaveOptions kQuick{.sync = false};

}  // namespace dtensor::test

// Parses file headers with the rules of safetensors' Metadata::validate and of serde, down to the forms that a tensor's
// description may have. tests/checkpoint/reference_test.cpp compares it with the reference implementation.
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "checkpoint/format/files/file.h"
#include "checkpoint/format/json.h"
#include "checkpoint/format/safetensors.h"

namespace dtensor::files {
namespace {

using Json = nlohmann::json;

struct FormatDtype {
  const char* name;
  at::ScalarType dtype;
  int bits;
};
constexpr auto kNone = at::ScalarType::Undefined;
constexpr std::array<FormatDtype, 22> kDtypes = {{{"F64", at::kDouble, 64},
                                                  {"F32", at::kFloat, 32},
                                                  {"F16", at::kHalf, 16},
                                                  {"BF16", at::kBFloat16, 16},
                                                  {"I64", at::kLong, 64},
                                                  {"I32", at::kInt, 32},
                                                  {"I16", at::kShort, 16},
                                                  {"I8", at::kChar, 8},
                                                  {"U8", at::kByte, 8},
                                                  {"BOOL", at::kBool, 8},
                                                  {"C64", at::kComplexFloat, 64},
                                                  {"U16", at::ScalarType::UInt16, 16},
                                                  {"U32", at::ScalarType::UInt32, 32},
                                                  {"U64", at::ScalarType::UInt64, 64},
                                                  {"F8_E4M3", at::ScalarType::Float8_e4m3fn, 8},
                                                  {"F8_E5M2", at::ScalarType::Float8_e5m2, 8},
                                                  {"F8_E4M3FNUZ", at::ScalarType::Float8_e4m3fnuz, 8},
                                                  {"F8_E5M2FNUZ", at::ScalarType::Float8_e5m2fnuz, 8},
                                                  {"F8_E8M0", at::ScalarType::Float8_e8m0fnu, 8},
                                                  {"F6_E2M3", kNone, 6},
                                                  {"F6_E3M2", kNone, 6},
                                                  {"F4", at::ScalarType::Float4_e2m1fn_x2, 4}}};

// serde also accepts {"U8": null} for "U8".
const FormatDtype& dtype_of(const Json& json, const std::string& path, const std::string& what) {
  const bool variant = json.is_object() && json.size() == 1 && json.begin()->is_null();
  const std::string name = variant ? json.begin().key() : string_value(json, path, "the dtype of " + what);
  const auto found = std::find_if(kDtypes.begin(), kDtypes.end(), [&](const auto& d) { return name == d.name; });
  TORCH_CHECK(found != kDtypes.end(), path, " is damaged: the dtype of ", what, " is '", name,
              "', which is not a safetensors dtype");
  return *found;
}

bool is_pair(const Json& json) { return json.is_array() && json.size() == 2; }

// A field of a description, which is an object or a list in this order.
const Json& field(const Json& json, std::size_t position, const char* name, const std::string& path,
                  const std::string& what) {
  if (!json.is_array()) return member(json, name, path, what);
  TORCH_CHECK(json.size() == 3, path, " is damaged: ", what, " is ", excerpt(json),
              ", not [dtype, shape, data_offsets]");
  return json.at(position);
}

// In the order of the reference, so that the same products overflow.
std::int64_t bits_of(const std::vector<std::int64_t>& sizes, int bits, const std::string& path,
                     const std::string& what) {
  std::uint64_t product = 1;
  bool fits = true;
  for (const std::int64_t n : sizes) {
    fits = fits && !__builtin_mul_overflow(product, static_cast<std::uint64_t>(n), &product);
  }
  fits = fits && !__builtin_mul_overflow(product, static_cast<std::uint64_t>(bits), &product) && product >> 63 == 0;
  std::int64_t stride = 1;  // of an empty tensor; ATen checks it as well
  for (std::size_t d = 1; d < sizes.size(); ++d) {
    fits = fits && !__builtin_mul_overflow(stride, std::max<std::int64_t>(sizes[d], 1), &stride);
  }
  TORCH_CHECK(fits, path, " is damaged: ", what, " of sizes ", at::IntArrayRef(sizes), " overflows a size of 64 bits");
  return static_cast<std::int64_t>(product);
}

// The file counts single elements in the last dimension, ATen pairs; ATen cannot represent odd sizes.
void count_pairs(CheckpointEntry& entry) {
  if (entry.sizes.empty() || entry.sizes.back() % 2 != 0) {
    entry.dtype = kNone;
  } else {
    entry.sizes.back() /= 2;
  }
}

CheckpointEntry parse_entry(const std::string& name, const Json& json, const std::string& path) {
  const std::string what = "'" + name + "'";
  CheckpointEntry e{.name = name, .file = path};
  const FormatDtype& dtype = dtype_of(field(json, 0, "dtype", path, what), path, what);
  e.dtype = dtype.dtype;
  e.format_dtype = dtype.name;
  const Json &shape = field(json, 1, "shape", path, what), &offsets = field(json, 2, "data_offsets", path, what);
  TORCH_CHECK(shape.is_array(), path, " is damaged: the shape of ", what, " is ", excerpt(shape), "; expected a list");
  for (const Json& n : shape) e.sizes.push_back(non_negative_integer(n, path, "a size of " + what));
  TORCH_CHECK(is_pair(offsets), path, " is damaged: the data_offsets of ", what, " are ", excerpt(offsets),
              ", not two numbers");
  e.offset = non_negative_integer(offsets[0], path, "where " + what + " begins");
  const std::int64_t end = non_negative_integer(offsets[1], path, "where " + what + " ends");
  TORCH_CHECK(end >= e.offset, path, " is damaged: ", what, " has data_offsets from ", e.offset, " to ", end);
  e.bytes = end - e.offset;
  const std::int64_t bits = bits_of(e.sizes, dtype.bits, path, what);
  TORCH_CHECK(bits % 8 == 0 && bits / 8 == e.bytes, path, " is damaged: ", what, " of sizes ", at::IntArrayRef(e.sizes),
              " and dtype ", dtype.name, " has ", e.bytes, " bytes");
  if (e.dtype == at::ScalarType::Float4_e2m1fn_x2) count_pairs(e);
  return e;
}

// The tensors must cover the data without gaps, overlaps or a remainder.
void check_cover(const std::vector<CheckpointEntry>& entries, std::int64_t data_bytes, const std::string& path) {
  std::vector<const CheckpointEntry*> sorted;
  for (const CheckpointEntry& e : entries) sorted.push_back(&e);
  std::sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) {
    return std::pair(a->offset, a->bytes) < std::pair(b->offset, b->bytes);
  });
  std::int64_t position = 0;
  for (const CheckpointEntry* e : sorted) {
    TORCH_CHECK(e->offset == position, path, " is damaged: '", e->name, "' begins at byte ", e->offset,
                " of the data; expected ", position);
    position += e->bytes;
    TORCH_CHECK(position <= data_bytes, path, " is truncated: '", e->name, "' ends at byte ", position,
                " of the data, which has ", data_bytes);
  }
  TORCH_CHECK(position == data_bytes, path, " is damaged: its tensors have ", position, " bytes, its data has ",
              data_bytes);
}

std::string header_text(const File& file, std::int64_t bytes, const std::string& path) {
  std::uint64_t length = 0;
  TORCH_CHECK(bytes >= static_cast<std::int64_t>(sizeof length), path,
              " is truncated or not a safetensors file: it has ", bytes, " bytes");
  file.read(&length, sizeof length, 0);
  TORCH_CHECK(length <= static_cast<std::uint64_t>(kMaxHeaderBytes) &&
                  length <= static_cast<std::uint64_t>(bytes) - sizeof length,
              path, " is truncated or not a safetensors file: the header has ", length, " bytes, the file ", bytes);
  std::string text(length, '\0');
  file.read(text.data(), static_cast<std::int64_t>(length), sizeof length);
  return text;
}

bool is_marked(const Json& all, const std::string& path) {
  const auto metadata = all.find("__metadata__");
  if (metadata == all.end() || metadata->is_null()) return false;
  TORCH_CHECK(metadata->is_object(), path, " is damaged: its metadata is ", excerpt(*metadata), "; expected an object");
  for (const auto& [name, value] : metadata->items()) string_value(value, path, "'" + name + "' of its metadata");
  return metadata->contains(kMarker);
}

}  // namespace

const char* format_name(at::ScalarType dtype) {
  for (const FormatDtype& d : kDtypes) {
    if (dtype == d.dtype && dtype != kNone) return d.name;
  }
  return nullptr;
}

std::vector<std::int64_t> format_sizes(const CheckpointEntry& entry) {
  std::vector<std::int64_t> sizes = entry.sizes;
  if (entry.dtype == at::ScalarType::Float4_e2m1fn_x2) sizes.back() *= 2;
  return sizes;
}

FileContent read_header(const std::string& path) {
  const File file = File::open_to_read(path);
  const std::int64_t bytes = file.size();
  const std::string text = header_text(file, bytes, path);
  const Json all = parse_json(text, path, [](int depth, const std::string& name) {
    return depth == 1 ? name == "__metadata__" : name == "dtype" || name == "shape" || name == "data_offsets";
  });
  TORCH_CHECK(all.is_object(), path, " is damaged: its header is ", excerpt(all), "; expected an object");
  FileContent content{.entries = {}, .marked = is_marked(all, path)};
  const auto data_begin = static_cast<std::int64_t>(sizeof(std::uint64_t) + text.size());
  for (const auto& [name, json] : all.items()) {
    if (name != "__metadata__") content.entries.push_back(parse_entry(name, json, path));
  }
  check_cover(content.entries, bytes - data_begin, path);
  for (CheckpointEntry& e : content.entries) e.offset += data_begin;
  return content;
}

}  // namespace dtensor::files

// A trace of a run in Chrome's format.
#include "trace.h"

#include <ATen/ATen.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

namespace train {
namespace {

const char* category(dtensor::Event::Kind kind) {
  switch (kind) {
    case dtensor::Event::Kind::op:
      return "operator";
    case dtensor::Event::Kind::redistribute:
      return "redistribution";
    case dtensor::Event::Kind::collective:
      return "collective";
  }
  return "?";
}

// Slices that one operator causes lie within its time, so a viewer nests them below it.
std::string slice(int rank, const dtensor::Event& event, std::chrono::steady_clock::time_point start) {
  using Microseconds = std::chrono::duration<double, std::micro>;
  nlohmann::json json = {{"ph", "X"}, {"pid", rank}, {"tid", 0}, {"name", event.name}, {"cat", category(event.kind)}};
  json["ts"] = Microseconds(event.begin - start).count();
  json["dur"] = Microseconds(event.end - event.begin).count();
  if (event.bytes > 0) json["args"]["bytes received"] = event.bytes;
  if (!event.axis.empty()) json["args"]["mesh axis"] = event.axis;
  return json.dump();
}

std::string process_name(int rank) {
  const nlohmann::json json = {
      {"ph", "M"}, {"pid", rank}, {"name", "process_name"}, {"args", {{"name", "rank " + std::to_string(rank)}}}};
  return json.dump();
}

at::Tensor to_bytes(const std::string& text) {
  at::Tensor bytes = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  return bytes;
}

// Every rank's text, on every rank.
std::vector<at::Tensor> gather(const dtensor::Communicator& world, const std::string& text) {
  std::vector<at::Tensor> sizes, texts;
  for (int rank = 0; rank < world.size(); ++rank) sizes.push_back(at::empty({1}, at::kLong));
  world.all_gather(sizes, at::full({1}, static_cast<std::int64_t>(text.size()), at::kLong)).wait();
  for (const at::Tensor& size : sizes) texts.push_back(at::empty({size.item<std::int64_t>()}, at::kByte));
  world.all_gather(texts, to_bytes(text)).wait();
  return texts;
}

}  // namespace

Trace::Trace(const dtensor::Communicator& world)
    : world_(world),
      start_((world.barrier(), std::chrono::steady_clock::now())),
      listener_([this](const dtensor::Event& event) { add(event); }) {}

void Trace::add(const dtensor::Event& event) { add_slice(slice(world_.rank(), event, start_)); }

void Trace::add_slice(const std::string& json) {
  slices_ += slices_.empty() ? "" : ",\n";
  slices_ += json;
}

void Trace::add(const StepRecord& record) {
  const double begin = std::chrono::duration<double, std::micro>(record.began - start_).count();
  for (const auto& [action, from, to] : record.actions) {
    const nlohmann::json json = {{"ph", "X"},
                                 {"pid", world_.rank()},
                                 {"tid", 1},
                                 {"name", dtensor::pipeline::to_string(action)},
                                 {"cat", "action"},
                                 {"ts", begin + 1e6 * from},
                                 {"dur", 1e6 * (to - from)}};
    add_slice(json.dump());
  }
}

void Trace::write(const std::string& path) {
  const std::string mine = process_name(world_.rank()) + (slices_.empty() ? "" : ",\n") + slices_;
  const std::vector<at::Tensor> texts = gather(world_, mine);
  if (world_.rank() != 0) return;
  std::ofstream out(path, std::ios::trunc);
  out << "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    if (rank > 0) out << ",\n";
    out.write(static_cast<const char*>(texts[rank].const_data_ptr()), texts[rank].numel());
  }
  out << "\n]}\n";
}

}  // namespace train

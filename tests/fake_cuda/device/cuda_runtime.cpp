// The CUDA runtime's functions over the simulator.
#include <cuda_runtime_api.h>

#include <array>

#include "fake_cuda/device/simulator.h"
#include "fake_cuda/device/threads.h"

namespace dtensor::test::fake_cuda {
namespace {

thread_local int device_of_thread = 0;
thread_local std::array<int, kDevices> stream_of_thread{};

CUstream_st& resolved(cudaStream_t stream) {
  return stream != nullptr ? *stream : Simulator::instance().stream(current_device(), 0);
}

cudaError_t error_of(Outcome outcome) {
  if (outcome == Outcome::failed) return cudaErrorLaunchFailure;
  return outcome == Outcome::done ? cudaSuccess : cudaErrorNotReady;
}

bool is_done(const CUevent_st& event) { return event.last == nullptr || event.last->done; }

// What this record covers is complete for the host.
cudaError_t known_to_host(Outcome outcome, const CUevent_st& event) {
  if (outcome == Outcome::done && event.last != nullptr)
    join(Simulator::instance().host(event.device), event.last->clock);
  return error_of(outcome);
}
cudaError_t known_to_host(Outcome outcome, const CUstream_st& stream) {
  if (outcome == Outcome::done) join(Simulator::instance().host(stream.device), stream.clock);
  return error_of(outcome);
}

}  // namespace

thread_local const std::string* current_kernel = nullptr;

int current_device() { return device_of_thread; }
void set_current_device(int device) { device_of_thread = device; }
int current_stream_index(int device) { return stream_of_thread.at(static_cast<std::size_t>(device)); }
void set_current_stream_index(int device, int index) { stream_of_thread.at(static_cast<std::size_t>(device)) = index; }
CUstream_st& current_stream(int device) { return Simulator::instance().stream(device, current_stream_index(device)); }

extern "C" {

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorLaunchFailure: {
      const auto lock = Simulator::instance().lock();
      return Simulator::instance().failure();
    }
    default:
      return "unknown error";
  }
}
const char* cudaGetErrorName(cudaError_t error) { return cudaGetErrorString(error); }
cudaError_t cudaGetLastError() { return cudaSuccess; }

cudaError_t cudaGetDeviceCount(int* count) { return *count = kDevices, cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = current_device(), cudaSuccess; }
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= kDevices) return cudaErrorInvalidDevice;
  return set_current_device(device), cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return *least = 0, *greatest = -5, cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  auto& simulator = Simulator::instance();
  auto lock = simulator.lock();
  for (std::size_t i = 0; i < simulator.streams(current_device()); ++i) {
    CUstream_st& stream = simulator.stream(current_device(), static_cast<int>(i));
    const auto error = known_to_host(simulator.drain(lock, stream, "cudaDeviceSynchronize"), stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  auto& simulator = Simulator::instance();
  const auto lock = simulator.lock();
  return *stream = &simulator.new_stream(current_device()), cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
// Queued work of a destroyed stream still runs.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const auto lock = Simulator::instance().lock();
  return Simulator::instance().release_stream(*stream), cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t given) {
  auto& simulator = Simulator::instance();
  const auto lock = simulator.lock();
  const CUstream_st& stream = resolved(given);
  return known_to_host(simulator.poll("cudaStreamQuery", [&] { return stream.queue.empty(); }), stream);
}

cudaError_t cudaStreamSynchronize(cudaStream_t given) {
  auto& simulator = Simulator::instance();
  auto lock = simulator.lock();
  CUstream_st& stream = resolved(given);
  return known_to_host(simulator.drain(lock, stream, "cudaStreamSynchronize"), stream);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t given, cudaEvent_t event, unsigned) {
  auto& simulator = Simulator::instance();
  const auto lock = simulator.lock();
  if (event->last == nullptr) return cudaSuccess;
  CUstream_st& stream = resolved(given);
  if (stream.device == event->device) join(stream.clock, event->last->clock);
  simulator.push(stream, {Item::Kind::wait, event->last});
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return *event = new CUevent_st{current_device()}, cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const auto lock = Simulator::instance().lock();
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t given) {
  auto& simulator = Simulator::instance();
  const auto lock = simulator.lock();
  CUstream_st& stream = resolved(given);
  if (event->device != stream.device) return cudaErrorInvalidResourceHandle;
  join(stream.clock, simulator.host(stream.device));
  event->last = std::make_shared<Record>(Record{false, &stream, stream.clock});
  simulator.push(stream, {Item::Kind::record, event->last});
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  auto& simulator = Simulator::instance();
  const auto lock = simulator.lock();
  return known_to_host(simulator.poll("cudaEventQuery", [&] { return is_done(*event); }), *event);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  auto& simulator = Simulator::instance();
  auto lock = simulator.lock();
  return known_to_host(simulator.wait_until(lock, "cudaEventSynchronize", [&] { return is_done(*event); }), *event);
}

}  // extern "C"
}  // namespace dtensor::test::fake_cuda

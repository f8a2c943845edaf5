// A guard for devices of type CUDA on a build of torch without CUDA, so that autograd takes tensors there. Loaded first.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <optional>

using namespace c10;
using namespace c10::impl;

struct Pretend : public NoOpDeviceGuardImpl<DeviceType::CUDA> {
  Device exchangeDevice(Device) const override { return Device(DeviceType::CUDA, 0); }
  Device getDevice() const override { return Device(DeviceType::CUDA, 0); }
  DeviceIndex deviceCount() const noexcept override { return 1; }
  Stream getStream(Device) const noexcept override { return Stream(Stream::DEFAULT, Device(DeviceType::CUDA, 0)); }
};

extern "C" void pretend() { registerDeviceGuard(DeviceType::CUDA, new Pretend()); }

namespace at::accelerator {
__attribute__((visibility("default"))) std::optional<c10::DeviceType> getAccelerator(bool) {
  return c10::DeviceType::CUDA;
}
__attribute__((visibility("default"))) bool isAccelerator(c10::DeviceType type) {
  return type == c10::DeviceType::CUDA;
}
}  // namespace at::accelerator

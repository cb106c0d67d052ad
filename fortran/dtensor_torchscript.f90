! Modules of Python in files of torch.jit.save, for Fortran 2008. Programs that use it link dtensor_torchscript too.
! dtensor/c/dtensor.h describes each call.
module dtensor_torchscript
  use, intrinsic :: iso_c_binding
  use dtensor
  use dtensor_c, only: c_text, finish
  implicit none
  private
  public :: dtensor_load_torchscript, dtensor_save_torchscript

  interface
    integer(c_int) function c_load_torchscript(mesh, path, made) bind(c, name='dtensor_module_load_torchscript')
      import
      type(c_ptr), value :: mesh
      character(kind=c_char), intent(in) :: path(*)
      type(c_ptr), intent(inout) :: made
    end function
    integer(c_int) function c_save_torchscript(layer, path) bind(c, name='dtensor_module_save_torchscript')
      import
      type(c_ptr), value :: layer
      character(kind=c_char), intent(in) :: path(*)
    end function
  end interface

contains

  subroutine dtensor_load_torchscript(mesh, path, layer, status)
    type(dtensor_mesh), intent(in) :: mesh
    character(len=*), intent(in) :: path
    type(dtensor_module), intent(inout) :: layer
    integer, intent(out), optional :: status
    call finish(c_load_torchscript(mesh%handle, c_text(path), layer%handle), status)
  end subroutine

  ! Writes the parameters as they are now trained.
  subroutine dtensor_save_torchscript(layer, path, status)
    type(dtensor_module), intent(in) :: layer
    character(len=*), intent(in) :: path
    integer, intent(out), optional :: status
    call finish(c_save_torchscript(layer%handle, c_text(path)), status)
  end subroutine
end module

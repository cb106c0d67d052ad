! Loads a module that torchscript_host has written, calls it with two inputs, and saves it.
! mpirun -n 2 torchscript_fortran FOLDER
program torchscript_fortran
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: error_unit
  use mpi_f08
  use dtensor
  use dtensor_torchscript
  implicit none
  character(len=1024) :: folder
  character(len=:), allocatable :: path
  type(dtensor_mesh) :: mesh
  type(dtensor_module) :: script, again
  type(dtensor_tensor) :: x(2), y(2), z(2), loss
  real(c_double), target :: a(6, 3), b(6, 3)
  real(c_double) :: difference
  integer :: ranks, status

  call get_command_argument(1, folder)
  call MPI_Init()
  call MPI_Comm_size(MPI_COMM_WORLD, ranks)
  path = trim(folder) // '/module_' // char(iachar('0') + ranks) // '.pt_second'
  call random_number(a)
  call random_number(b)
  call dtensor_mesh_from_mpi(MPI_COMM_WORLD%mpi_val, [ranks], mesh)
  call dtensor_from_host(mesh, dtensor_view(a), '[S(0)]', x(1))
  call dtensor_from_host(mesh, dtensor_view(b), '[S(0)]', x(2))
  call dtensor_load_torchscript(mesh, path, script)
  call dtensor_train(script, .false.)
  call dtensor_forward(script, x, y, record=.false.)
  call dtensor_save_torchscript(script, path // '_fortran')
  call dtensor_load_torchscript(mesh, path // '_fortran', again)
  call dtensor_forward(again, x, z)
  call dtensor_l1_loss(y(2), z(2), loss)
  call dtensor_item(loss, difference)
  if (difference > 1e-12_c_double) call fail('the saved module')
  call dtensor_forward(again, x(1:1), z(1:1), status=status)
  if (status /= dtensor_invalid_argument) call fail('one input of two')
  call dtensor_load_torchscript(mesh, 'no/such/file', again, status)
  if (status /= dtensor_invalid_argument) call fail('a missing file')
  call MPI_Finalize()

contains

  subroutine fail(what)
    character(len=*), intent(in) :: what
    write (error_unit, '(4a)') 'torchscript_fortran: ', what, '; last error: ', dtensor_last_error()
    error stop 1
  end subroutine
end program
